
# From 2.3 on `containerd config dump` shows the newest schema, whatever the root file has, and containerd does not start
# with a drop-in of a newer schema than that of its root file. https://github.com/NVIDIA/aicr/issues/1688
if [ "$RUNTIME" = containerd ] && [ -z "$RUNTIME_CONFIG_SOURCE" ] && [ -f "$RUNTIME_CONFIG" ]; then
    schema_of() {  # prints the top-level key `version` of a configuration; 1 without one
        schema=1
        for line in $1; do
            case $line in
                \[*) break ;;
                version*) digits=${line#"${line%%[0-9]*}"} && schema=${digits%%[!0-9]*} && break ;;
            esac
        done
        echo "${schema:-1}"
    }
    separators=$IFS
    set -f
    IFS='
'
    root=$(schema_of "$(cat "$RUNTIME_CONFIG")")
    shown=$(schema_of "$(chroot /host containerd config dump 2>/dev/null)")
    IFS=$separators
    set +f
    [ "$shown" -gt "$root" ] && export RUNTIME_CONFIG_SOURCE=file &&
        echo "containerd shows schema $shown, and its root configuration has $root: that file is read"
fi
