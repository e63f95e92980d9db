# Reserves huge pages: `reserve SIZE COUNT POOL`, as many as there is room for; remembers how many that was.

# Kubelets are noted before the first page: after an interruption it is still known which one has to be restarted.
mkdir -p "$state" && for process in /proc/[0-9]*; do
  read -r name 2>/dev/null <"$process/comm" || continue
  case $name in
    kubelet | kubelite | k0s | k3s | k3s-server | k3s-agent | rke2 | rke2-server | rke2-agent)
      echo "${process##*/} $(cut -d' ' -f22 "$process/stat") $name" ;;
  esac
done >"$unaware_kubelets" || exit
reserve() {
  echo "$2" 2>/dev/null >"$3"
  read -r got <"$3" && {
    [ ! -e "$hugepage_attempts" ] || sed "/^$1 /d" "$hugepage_attempts"
    echo "$1 $2 $got"
  } >"$hugepage_attempts.new" && mv -f "$hugepage_attempts.new" "$hugepage_attempts"
}
