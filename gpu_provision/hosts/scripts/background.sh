# The beginning of every background script: `end OUTCOME EVIDENCE` ends it; `last` prints the last line of $said.
umask 077
PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/sbin
LC_ALL=C
export PATH LC_ALL
echo $$ >"$work/pid.new" && mv "$work/pid.new" "$work/pid"
said=$work/said
command -v timeout >/dev/null || timeout() { shift; "$@"; }
clean_up() { :; }
end() {
  clean_up
  printf '%s\n' "$@" | cut -c 1-300 >"$work/result.new"
  mv "$work/result.new" "$work/result"
  exit 0
}
last() { grep -v '^[[:space:]]*$' "$said" | tail -n 1; }
