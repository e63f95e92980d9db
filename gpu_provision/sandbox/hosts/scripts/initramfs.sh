#!/bin/sh
# An initramfs image holds a copy of modprobe.d, which decides what loads early at the next boot.
tool=${0##*/}
read -r kernel </proc/sys/kernel/osrelease
case $tool in dracut) image=/boot/initramfs-$kernel.img ;; *) image=/boot/initrd.img-$kernel ;; esac
case $tool in update-initramfs) echo "update-initramfs: Generating $image" ;; esac
cat /etc/modprobe.d/*.conf >"$image.new" 2>/dev/null
mv "$image.new" "$image"
