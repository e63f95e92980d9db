# Puts the files of $work/input in place, and restarts the runtime; after background.sh, backups.sh and runtime.sh.
files=$work/files
rm -rf "$files" && mkdir -p "$files/new" "$files/old" || end not-kept "no room in $work"
: >"$files/done"
clean_up() { rm -rf "$files" "$work/input"; }
awk -v folder="$files/new" '
  /^[+] / { if (file) close(file); file = folder "/" ++count; printf "" >file; print "put", $2, $3, count; next }
  /^- / { print "remove", 0, $2, ++count; next }
  { print substr($0, 2) >file }
' "$work/input" >"$files/todo" 2>"$said" || end not-kept "$(last)"

place() {
  fresh=${2%/*}/.${2##*/}.gpu-provision
  (umask 022 && mkdir -p "${2%/*}") && rm -f "$fresh" && cp -p "$1" "$fresh" && mv -f "$fresh" "$2" && label "$2"
}
change() {
  while read -r what mode path number; do
    keep "$path" || return
    if [ -e "$path" ] || [ -L "$path" ]; then cp -pP "$path" "$files/old/$number" || return; fi
    echo "$path $number" >>"$files/done" || return
    case $what in
      put) chmod "$mode" "$files/new/$number" && place "$files/new/$number" "$path" || return ;;
      remove) rm -f "$path" || return ;;
    esac
  done <"$files/todo"
}
undo() {
  while read -r path number; do
    if [ -e "$files/old/$number" ] || [ -L "$files/old/$number" ]; then
      rm -f "$path" && cp -pP "$files/old/$number" "$path"
    else
      rm -f "$path"
    fi
  done <"$files/done"
}
reload() {
  { [ -z "$units" ] || systemctl daemon-reload; } >"$said" 2>&1 &&
    { [ -z "$trust" ] || timeout 120 sh -c "$trust"; } >>"$said" 2>&1
}
take_back() {
  trap '' HUP INT TERM
  evidence=$(complaint)
  undo
  reload
  systemctl reset-failed "$unit" 2>/dev/null
  restart
  recovers && end restored "$evidence"
  end dead "$(complaint)"
}

if [ "$kind" = docker ] && [ "$(timeout 10 docker info --format '{{.LiveRestoreEnabled}}')" != true ]; then
  end no-tool "without live-restore in its daemon.json, docker stops all containers when it is restarted"
fi
[ -z "$kind" ] || answers || end down "$(complaint)"
trap 'undo; reload; end not-kept "ended from outside"' HUP INT TERM
change 2>"$said" || { evidence=$(last); undo; end not-kept "$evidence"; }
reload || { evidence=$(last); undo; reload; end rejected-new "$evidence"; }
[ -n "$kind" ] || end changed
trap take_back HUP INT TERM
restart && recovers || take_back
trap '' HUP INT TERM
end changed
