#!/usr/bin/env bash
# Builds programs of Kubernetes 1.20.2 from Debian's source package.
#
#   tests/real/build_kubernetes.sh WORK PROGRAM...      # makes WORK/made/PROGRAM; WORK is an empty folder
#
# Needs Debian 12, and root to install the packages that a build takes, or these packages. The machine's own package
# sources say where the source comes from; its configuration stays as it is.
set -euo pipefail
umask 022

work=$(realpath "$1")
shift
programs=("$@")
packages=(dpkg-dev make golang-1.19-go rsync golang-github-modern-go-reflect2-dev)
reflect2=/usr/share/gocode/src/github.com/modern-go/reflect2

say() { printf '%5d s  %s\n' "$SECONDS" "$*"; }
fail() { printf '%s\n' "$@" >&2; exit 1; }

# Runs a command with its output in a file, whose end is shown only if the command fails.
quietly() {
  local log=$work/$1.log
  shift
  "$@" >"$log" 2>&1 || { tail -n 50 "$log" >&2; fail "This failed: $*"; }
}

lacking_packages() {
  local package
  for package in "${packages[@]}"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || echo "$package"
  done
}

install_packages() {
  local lacking
  mapfile -t lacking < <(lacking_packages)
  [ "${#lacking[@]}" -gt 0 ] || return 0
  [ "$(id -u)" -eq 0 ] || fail "To build Kubernetes, let root do this first: apt-get install ${lacking[*]}"
  say "installing ${lacking[*]}"
  quietly update apt-get update -qq
  DEBIAN_FRONTEND=noninteractive quietly install apt-get install -qq -y --no-install-recommends "${lacking[@]}"
}

# Debian's own repositories, as sources: whatever form the machine's list of them has.
source_lines() {
  local keyring=/usr/share/keyrings/debian-archive-keyring.gpg
  # shellcheck disable=SC2016 # apt's variables, not ours
  apt-get indextargets --format '$(CODENAME) deb-src [signed-by='"$keyring"'] $(REPO_URI) $(RELEASE) $(COMPONENT)' \
    'Origin: Debian' 'Component: main' 'Created-By: Packages' | sed -n 's/^bookworm[^ ]* //p' | sort -u
}

# Package lists in a folder of their own.
private_apt() {
  apt-get -o Dir::Etc::SourceList="$work/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null \
    -o Dir::State::Lists="$work/apt/lists" -o Dir::Cache="$work/apt/cache" -o APT::Sandbox::User='' "$@"
}

fetch_source() {
  mkdir -p "$work/apt/lists/partial" "$work/apt/cache/archives/partial"
  source_lines >"$work/apt/sources.list"
  [ -s "$work/apt/sources.list" ] || fail \
    "This machine's package lists have nothing of Debian 12 (bookworm), whose source package is built." \
    "On Debian 12: apt-get update. Elsewhere: set KUBEBUILDER_ASSETS to a folder that holds Kubernetes' programs."
  quietly update-sources private_apt update
  cd "$work"
  quietly source private_apt source kubernetes
}

# The source is older than Go 1.18, under which its reflect2 breaks; Debian has a newer one in a package of its own.
mend_reflect2() {
  local vendored=vendor/github.com/modern-go/reflect2
  rm "$vendored"/*.go "$vendored"/*.s
  cp "$reflect2"/*.go "$reflect2"/*.s "$vendored"
  rm -f "$vendored"/*_test.go
}

build() {
  local program=$1
  say "building $program"
  quietly "$program" make WHAT="cmd/$program"
  install -D "_output/bin/$program" "$work/made/$program"
}

install_packages
say "fetching Debian's source package of Kubernetes; then each program takes about 2 minutes"
fetch_source
cd "$work"/kubernetes-*1.20.2
mend_reflect2
mkdir -p .go/src/k8s.io
ln -s ../../.. .go/src/k8s.io/kubernetes
cd .go/src/k8s.io/kubernetes
GOPATH=$(realpath ../../..)
export GOPATH GO111MODULE=off GOCACHE="$work/gocache" GOFLAGS='' CGO_ENABLED=0
export PATH="/usr/lib/go-1.19/bin:$PATH"
export KUBE_GIT_VERSION=v1.20.2 KUBE_GIT_COMMIT=debian KUBE_GIT_TREE_STATE=archive KUBE_GIT_MAJOR=1 KUBE_GIT_MINOR=20
for program in "${programs[@]}"; do build "$program"; done
[ ! -e "$work/made/kube-apiserver" ] || grep -q reflect2/go_above_118.go "$work/made/kube-apiserver" \
  || fail 'The API server still has the old reflect2.'
say "built ${programs[*]}"
