# shellcheck shell=bash
# Sourced by the scripts: where things are, what the host must have, and a private apt.
set -euo pipefail
umask 022
ROOT=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
NAME=$(basename "$0")
CACHE=${XDG_CACHE_HOME:-${HOME:?neither XDG_CACHE_HOME nor HOME is set}/.cache}/neuron-vfio-user

say() { printf '%s: %s\n' "$NAME" "$*" >&2; }
die() { say "$*"; exit 2; }

# Prints the comment at the head of the calling script.
usage() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; }

# need COMMAND|/FILE:PACKAGE ... -- all that is missing in one line, with the command that installs it.
need() {
    local item missing=() packages=()
    for item; do
        case $item in
            /*) [ -e "${item%%:*}" ] && continue ;;
            *) command -v "${item%%:*}" >/dev/null && continue ;;
        esac
        missing+=("${item%%:*}") packages+=("${item##*:}")
    done
    [ ${#missing[@]} = 0 ] && return
    die "missing on this host: ${missing[*]}; install with: $([ "$(id -u)" = 0 ] || echo 'sudo ')apt-get install -y $(printf '%s\n' "${packages[@]}" | sort -u | xargs)"
}

need_compiler() { need gcc:gcc make:make ld:binutils /usr/include/stdio.h:libc6-dev; }
need_cargo() {
    need_compiler
    command -v cargo >/dev/null || die "cargo is not in PATH: install Rust $(sed -n "s/^rust-version = \"\(.*\)\"/\1/p" "$ROOT/Cargo.toml") or newer (rustup, https://rustup.rs) and try again"
}

# Every "URI SUITE COMPONENTS..." that the host's apt knows, in both file formats.
apt_sources() {
    local f
    for f in /etc/apt/sources.list.d/*.sources; do
        [ -r "$f" ] || continue
        awk '
            function flush(  i, j, n, m, u, s) {
                if (on && types ~ /(^| )deb( |$)/) {
                    n = split(uris, u, " "); m = split(suites, s, " ")
                    for (i = 1; i <= n; i++) for (j = 1; j <= m; j++) print u[i], s[j], components
                }
                on = 1; types = uris = suites = components = key = ""
            }
            BEGIN { on = 1 }
            /^#/ { next }
            /^[[:space:]]*$/ { flush(); next }
            /^[^[:space:]]/ { key = tolower($1); sub(/^[^:]*:[[:space:]]*/, "") }
            key == "enabled:" && tolower($0) ~ /^(no|false|0)/ { on = 0 }
            key == "types:" { types = types " " $0 }
            key == "uris:" { uris = uris " " $0 }
            key == "suites:" { suites = suites " " $0 }
            key == "components:" { components = components " " $0 }
            END { flush() }' "$f"
    done
    for f in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
        [ -r "$f" ] && sed -n 's/#.*//; s/^[[:space:]]*deb[[:space:]]\+\(\[[^]]*\][[:space:]]*\)\?//p' "$f"
    done
    return 0
}

# Mirrors of the Debian archive that this host uses already, best first; DEBIAN_MIRROR goes before all of them.
debian_mirrors() {
    [ -z "${DEBIAN_MIRROR:-}" ] || { echo "$DEBIAN_MIRROR"; return; }
    apt_sources | awk '$2 ~ /^(bookworm|trixie|forky|sid|oldstable|stable|testing|unstable)$/ && / main( |$)/ { print $1 }' | awk '!seen[$0]++'
}

# The security archive beside mirror $1.
security_mirror() {
    [ -z "${DEBIAN_SECURITY_MIRROR:-}" ] || { echo "$DEBIAN_SECURITY_MIRROR"; return; }
    local found
    found=$(apt_sources | awk '$2 ~ /^[a-z]+-security$/ && / main( |$)/ { print $1; exit }')
    echo "${found:-${1%/}-security}"
}

# private_apt DIR SUITE... -- package lists of those suites in DIR; the host's apt state is neither read nor written.
private_apt() {
    local w=$1 m s keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    shift
    need apt-get:apt dpkg-deb:dpkg $keyring:debian-archive-keyring
    mkdir -p "$w"/{lists/partial,parts,prefs,archives/partial}
    : >"$w/status"
    cat >"$w/apt.conf" <<C
Dir::Etc::SourceList "/dev/null"; Dir::Etc::SourceParts "$w/parts"; Dir::Etc::Preferences "/dev/null"; Dir::Etc::PreferencesParts "$w/prefs";
Dir::State "$w"; Dir::State::Lists "$w/lists"; Dir::State::Status "$w/status"; Dir::Cache "$w"; Dir::Cache::Archives "$w/archives";
Acquire::Languages "none"; Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false"; Acquire::Retries "3";
APT::Architecture "amd64"; APT::Architectures { "amd64"; }; APT::Install-Recommends "false"; APT::Sandbox::User ""; Debug::NoLocking "1";
#clear APT::Update::Pre-Invoke; #clear APT::Update::Post-Invoke-Success; #clear APT::Update::Post-Invoke; #clear DPkg::Post-Invoke; #clear DPkg::Pre-Install-Pkgs;
C
    export APT_CONFIG=$w/apt.conf
    local mirrors
    mirrors=$(debian_mirrors)
    [ -n "$mirrors" ] || die "no Debian mirror in /etc/apt/sources.list or sources.list.d; set DEBIAN_MIRROR to one"
    for m in $mirrors; do
        : >"$w/parts/q.sources"
        for s; do
            # One stanza a suite: the security archive is another server.
            printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nArchitectures: amd64\nSigned-By: %s\n\n' \
                "$(case $s in *-security) security_mirror "$m" ;; *) echo "$m" ;; esac)" "$s" "$keyring" >>"$w/parts/q.sources"
        done
        say "reading the package lists of $* from $m"
        if apt-get -qq -o APT::Update::Error-Mode=any update >&2; then return; fi
    done
    die "no mirror of this host gives $*; set DEBIAN_MIRROR (and DEBIAN_SECURITY_MIRROR) to one that does, or check the network"
}

# Takes the lock of a cache entry, so that two runs do not fetch it at the same time.
lock() {
    mkdir -p "$CACHE" || die "cannot write the cache $CACHE; set XDG_CACHE_HOME"
    exec 9>"$CACHE/.lock-$1"
    flock -n 9 || { say "waiting for another run that fetches $1"; flock 9; }
}

# A working directory that goes away with the script.
workdir() {
    W=$(mktemp -d "$CACHE/.tmp.XXXXXX")
    trap 'rm -rf "$W"' EXIT
    trap 'exit 130' INT TERM HUP
}
