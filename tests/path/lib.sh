# What the tests of the whole path have in common. Sourced, with `set -euo pipefail` on.
#
# A test gets a directory ($DIR), drives (new_drives), a daemon (start_daemon) and the command (`p`). What it started is
# ended with it, by its own process identities.

SIZES_UNIT=1048576

DIR=$(mktemp -d "${TMPDIR:-/dev/shm}/purlin-test.XXXXXX")
STATE=$DIR/state
SOCKET=$DIR/purlind.sock
NBD=$DIR/nbd.sock
DAEMON=
LOOPS=()
FILES=()
HELPERS=()
NETWORKS=()
# What the daemon is started with: `ip netns exec NAME`, where it is to be on a machine of its own.
WITHIN=()

cleanup() {
    local status=$?
    stop_daemon TERM || true
    local loop helper network
    for helper in "${HELPERS[@]}"; do
        kill "$helper" 2>/dev/null || true
        wait "$helper" 2>/dev/null || true
    done
    for network in "${NETWORKS[@]}"; do ip netns delete "$network" || true; done
    for loop in "${LOOPS[@]}"; do losetup -d "$loop" || true; done
    if ((status != 0)) && [[ -s $DIR/daemon.log ]]; then
        echo "--- the daemon said:" >&2
        tail -n 40 "$DIR/daemon.log" >&2
    fi
    rm -rf "$DIR"
    return "$status"
}
trap cleanup EXIT

fail() {
    echo "FAILED: $*" >&2
    exit 1
}

# Debian's Python has libnbd's module, and another one may come first on the path.
nbdsh() { PATH=/usr/bin:$PATH command nbdsh "$@"; }

p() { purlin --socket "$SOCKET" "$@"; }

start_daemon() {
    "${WITHIN[@]}" purlind --state "$STATE" --socket "$SOCKET" "$@" 2>>"$DIR/daemon.log" &
    DAEMON=$!
    local try
    for try in $(seq 200); do
        if p group list >/dev/null 2>&1; then return 0; fi
        kill -0 "$DAEMON" 2>/dev/null || fail "the daemon ended: $(tail -n 3 "$DIR/daemon.log")"
        sleep 0.05
    done
    fail "the daemon does not answer (after try $try)"
}

# stop_daemon SIGNAL: ends the daemon and waits for its end.
stop_daemon() {
    [[ -n $DAEMON ]] || return 0
    kill -s "$1" "$DAEMON" 2>/dev/null || true
    wait "$DAEMON" 2>/dev/null || true
    DAEMON=
}

# free_port: one that nobody listens at, below those that the kernel gives to clients, which may be taken a moment later.
free_port() {
    local port
    while true; do
        port=$((20000 + RANDOM % 12000))
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
    done
    echo "$port"
}

# new_drives COUNT MIB [SECTOR]: loop devices over files in memory where this machine lets us make some, else files.
# Their names are in DRIVES.
new_drives() {
    local count=$1 mib=$2 sector=${3:-512} index file loop
    DRIVES=()
    for index in $(seq "$count"); do
        file=$DIR/drive-${#FILES[@]}
        truncate -s "$((mib * SIZES_UNIT))" "$file"
        FILES+=("$file")
        if [[ -z ${NO_LOOP:-} ]] && loop=$(losetup --find --show --direct-io=on --sector-size "$sector" "$file" 2>/dev/null); then
            LOOPS+=("$loop")
            DRIVES+=("$loop")
        else
            DRIVES+=("$file")
        fi
    done
}

# new_network VARIABLE: a network namespace, which stands for a machine; its name is put there. Fails where none can be made.
new_network() {
    printf -v "$1" 'purlin-%s-%s' "$1" "$$"
    ip netns add "${!1}" 2>/dev/null || return 1
    NETWORKS+=("${!1}")
}

milliseconds() { echo $(($(date +%s%N) / 1000000)); }

join() {
    local IFS=,
    echo "$*"
}

# json QUERY [PURLIN ARGUMENTS]: a value out of the command's JSON, by a Python expression over `d`.
json() {
    local query=$1
    shift
    p "$@" --output json | python3 -c "import json,sys; d=json.load(sys.stdin); print($query)"
}

# wait_rebuilt GROUP: until every member is in sync.
wait_rebuilt() {
    local try
    for try in $(seq 600); do
        [[ $(json 'all(m["state"]=="in_sync" for m in d["members"])' group show "$1") == True ]] && return 0
        sleep 0.1
    done
    p group show "$1" >&2
    fail "not rebuilt after $try looks"
}

# refuses "SENTENCE" PURLIN ARGUMENTS: the command fails with exactly this sentence.
refuses() {
    local expected=$1 said status=0
    shift
    said=$(p "$@" 2>&1 >/dev/null </dev/null) || status=$?
    ((status != 0)) || fail "not refused: purlin $*"
    [[ $said == "$expected" ]] || fail "purlin $*
  said:     $said
  expected: $expected"
}
