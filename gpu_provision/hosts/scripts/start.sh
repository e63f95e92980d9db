# Starts $script detached from this shell, and returns. The same $job that runs already is left to run; the end of any
# other one is waited for.
# shellcheck disable=SC2174 # what is above may be read
mkdir -p -m 700 "$work" && (
  umask 077
  cd "$work" || exit
  # A script that runs has no result yet; it may still be there for a moment after it has one.
  runs() { [ ! -e result ] && kill -0 "$(cat pid 2>/dev/null || echo none)" 2>/dev/null; }
  left=600
  while runs && [ "$(cat job)" != "$job" ] && [ "$left" -gt 0 ]; do
    sleep 1
    left=$((left - 1))
  done
  runs && exit
  rm -f result pid
  [ -z "$takes_stdin" ] || cat >input || exit
  echo "$job" >job && printf %s "$script" >change.sh || exit
  if [ -d /run/systemd/system ] && command -v systemd-run >/dev/null; then
    systemd-run --quiet --collect --unit="gpu-provision-runtime-$$" sh "$work/change.sh"
  else
    # Without systemd it leaves the control groups of this shell: with a helper pod, all that is in the pod's would end.
    # shellcheck disable=SC2016 # for the inner shell
    setsid sh -c '
      groups=/sys/fs/cgroup/cgroup.procs
      [ -e "$groups" ] || groups=/sys/fs/cgroup/*/cgroup.procs
      for group in $groups; do echo $$ >"$group"; done
      exec sh "$0"' "$work/change.sh" </dev/null >/dev/null 2>&1 &
  fi
)
