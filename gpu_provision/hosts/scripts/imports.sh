# Has containerd import $pattern; after background.sh, backups.sh and runtime.sh.
target=$(readlink -f "$config") || target=$config
fresh=$target.gpu-provision-new
old=$target.gpu-provision-old
clean_up() { rm -f "$fresh"; }
accepts() { timeout 30 "$binary" --config "$1" config dump >/dev/null 2>"$said"; }
take_back() {
  trap '' HUP INT TERM
  evidence=$(complaint)
  if [ -e "$old" ]; then mv "$old" "$target"; else rm -f "$target"; fi
  systemctl reset-failed "$unit" 2>/dev/null
  restart
  recovers && end restored "$evidence"
  end dead "$(complaint)"
}

answers || end down "$(complaint)"
if [ -e "$target" ]; then
  accepts "$target" || end rejected-old "$(last)"
  PATTERN=$pattern awk "$edit" "$target" "$target" >"$work/edited" || end rejected-new "awk cannot edit $target"
  { cp -a "$target" "$old" && cp -a "$target" "$fresh" && cat "$work/edited" >"$fresh"; } 2>"$said" || {
    rm -f "$old"
    end not-kept "$(last)"
  }
  rm -f "$work/edited"
else
  fresh=$work/config.toml
  schema=$(timeout 30 "$binary" config default 2>/dev/null | sed -nE 's/^version *= *([0-9]+).*/\1/p' | head -n 1)
  [ -n "$schema" ] || end rejected-new "$binary config default names no version"
  printf '# Written by gpu-provision\nversion = %s\nimports = ["%s"]\n' "$schema" "$pattern" >"$fresh"
  chmod 644 "$fresh"
  rm -f "$old"
fi
accepts "$fresh" || { evidence=$(last); rm -f "$old"; end rejected-new "$evidence"; }
keep "$target" 2>"$said" || { rm -f "$old"; end not-kept "$(last)"; }
trap take_back HUP INT TERM
{ (umask 022 && mkdir -p "${target%/*}") && mv "$fresh" "$target"; } 2>"$said" || take_back
! command -v restorecon >/dev/null || restorecon "$target"
restart && recovers || take_back
trap '' HUP INT TERM
rm -f "$old"
end changed
