# answers, recovers, restart, complaint, and $unit, of the container runtime; without $kind there is no runtime. Only
# lines that report errors are quoted: at its start containerd logs its configuration, credentials and all.
by_root() { grep -qs '^Uid:[[:space:]]*0[[:space:]]' "$1/status"; } # any user can give a process any name
ask_containerd() {
  timeout 10 "$ctr" --address "$socket" --connect-timeout 5s plugins ls >"$said" 2>&1 &&
    awk '$1 == "io.containerd.grpc.v1" && $2 == "cri" { state = $NF } END { exit state != "ok" }' "$said"
}
ask_crio() {
  if command -v crictl >/dev/null; then
    timeout 10 crictl --runtime-endpoint "unix://$socket" version >"$said" 2>&1
  else
    systemctl is-active "$unit" >"$said" && [ -S "$socket" ]
  fi
}
answers() {
  case $kind in
    containerd) ask_containerd ;;
    cri-o) ask_crio ;;
    docker) timeout 10 docker version >"$said" 2>&1 ;;
  esac
}
recovers() {
  deadline=$(($(date +%s) + patience))
  while ! answers; do
    [ "$(date +%s)" -lt "$deadline" ] || return 1
    sleep 1
  done
  sleep 2
  answers
}
complaint() {
  line=$(journalctl -u "$unit" -n 50 -o cat --no-pager 2>/dev/null |
    grep -E 'level="?(error|fatal)|^(containerd|crio|dockerd): |failed to load plugin [^ ]*\.cri"' | tail -n 1)
  [ -n "$line" ] || line=$(grep -E '^io.containerd.grpc.v1 +cri ' "$said")
  [ -n "$line" ] || line=$(last)
  printf '%s\n' "${line:-$kind does not answer}"
}
restart() { timeout 90 systemctl restart "$unit" >"$said" 2>&1; }

option() { tr '\0' '\n' | sed -nE '/^(-c|--config)$/{n; p; }; s/^--config=//p' | head -n 1; }
case $kind in
  cri-o) program=crio unit=crio.service ;;
  docker) program=dockerd unit=docker.service ;;
  *) program=containerd unit=containerd.service ;;
esac
for process in /proc/[0-9]*; do
  read -r name 2>/dev/null <"$process/comm" && [ "$name" = "$program" ] && by_root "$process" || continue
  own=$(option <"$process/cmdline")
  [ "$kind" != containerd ] || [ "${own:-/etc/containerd/config.toml}" = "$config" ] || continue
  found=$(sed -nE 's|.*/([^/]+\.service)(/.*)?$|\1|p' "$process/cgroup" | head -n 1)
  unit=${found:-$unit}
  break
done
ctr=${binary%/*}/ctr
[ "$kind" != containerd ] || [ -x "$ctr" ] || ctr=$(command -v ctr) || end no-tool "ctr is not installed"
[ -z "$kind" ] || command -v systemctl >/dev/null || end no-tool "systemctl is not installed"
