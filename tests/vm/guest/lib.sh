# shellcheck shell=bash
# What the scripts have in the guest. Sourced, with `set -euo pipefail` on.
#
# Beside the command (`p`), the daemon (start_daemon, stop_daemon) and JSON (`json`), as in tests/path: the drives, by the number
# that the host knows them by (drive, drives), and what can be asked of the host (host). What a script prints on stdout is
# compared; what it says on stderr is on the console.

STATE=/run/state
SOCKET=/run/purlind.sock
NBD=/run/nbd.sock
DAEMON=

fail() {
    echo "FAILED: $*" >&2
    # At the console it would turn the machine off.
    [[ $- == *i* ]] || exit 1
    return 1
}

# host REQUEST: asks the machine outside, see machine.py. Prints what it gives; fails with its sentence.
host() {
    local answer
    exec 3<>/dev/ttyS1
    echo "$*" >&3
    read -r answer <&3
    exec 3>&-
    [[ ${answer%% *} == ok ]] || fail "host $*: $answer"
    [[ $answer == ok ]] || echo "${answer#ok }"
}

# drive N: the block device of drive N, or nothing.
drive() {
    local serial
    for serial in /sys/class/nvme/nvme*/serial; do
        [[ $(<"$serial") =~ ^PURLIN$1(-[0-9]+)?\ *$ ]] || continue
        # Put back while something still holds what was pulled, it has another number behind the n.
        basename "$(dirname "$serial")"/nvme*n[0-9]* | sed 's|^|/dev/|'
    done
}

# drives FIRST LAST: the block devices of these, with commas between.
drives() {
    local n names=()
    for n in $(seq "$1" "$2"); do names+=("$(drive "$n")"); done
    (IFS=,; echo "${names[*]}")
}

p() { purlin --socket "$SOCKET" "$@"; }

# json FILTER [PURLIN ARGUMENTS]: a value out of the command's JSON, by jq.
json() {
    local filter=$1
    shift
    p "$@" --output json | jq -r "$filter"
}

start_daemon() {
    local try
    # Its log is on the console too, for a test that hangs.
    purlind --state "$STATE" --socket "$SOCKET" "$@" 2> >(exec tee -a /run/purlind.log >&2) &
    DAEMON=$!
    for try in $(seq 600); do
        if p group list >/dev/null 2>&1; then return 0; fi
        kill -0 "$DAEMON" 2>/dev/null || fail "the daemon ended"
        sleep 0.1
    done
    fail "the daemon does not answer (after try $try)"
}

# stop_daemon SIGNAL: ends the daemon and waits for its end.
stop_daemon() {
    kill -s "$1" "$DAEMON"
    wait "$DAEMON" 2>/dev/null || true
    DAEMON=
}

# wait_for SECONDS COMMAND: until the command succeeds.
wait_for() {
    local until=$((SECONDS + $1))
    shift
    until "$@"; do
        ((SECONDS < until)) || fail "still not: $*"
        sleep 0.2
    done
}

# make_fs KIND DEVICE, check_fs KIND DEVICE: ext4, XFS or btrfs, and what its own checker says of it.
make_fs() {
    case $1 in
        ext4) mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 "$2" ;;
        xfs) mkfs.xfs -q -f "$2" ;;
        btrfs) mkfs.btrfs -q -f "$2" ;;
        *) fail "make_fs does not know $1" ;;
    esac
}
check_fs() {
    case $1 in
        ext4) e2fsck -fn "$2" ;;
        xfs) xfs_repair -n "$2" ;;
        btrfs) btrfs check --readonly "$2" ;;
        *) fail "check_fs does not know $1" ;;
    esac
}

# fill DIRECTORY: its file system until there is no room, in the files `room` and `fill`: what is written are the last 24 MiB, if there are as many.
fill() {
    local said free
    free=$(($(stat -f -c '%a * %S' "$1") - (24 << 20)))
    ((free <= 0)) || xfs_io -f -c "falloc 0 $free" "$1/room"
    said=$(dd if=/dev/zero of="$1/fill" bs=1M 2>&1) && fail "$1 is never full"
    [[ $said == *"No space left on device"* ]] || fail "$1: $said"
}

# fio_ends PID OUTPUT: fio, which runs until it is told to end, was still at work, and found nothing wrong.
fio_ends() {
    kill -INT "$1" 2>/dev/null || { cat "$2" >&2; fail "fio had ended"; }
    # A signal's end has a status of its own.
    wait "$1" || (($? == 128)) || { cat "$2" >&2; fail "fio says that something was wrong"; }
    grep -q 'err= 0' "$2" || { cat "$2" >&2; fail "fio says that something was wrong"; }
}

# nbd_attach VOLUME: the volume, exported at $NBD, becomes /dev/nbd0. nbd_detach ends that.
nbd_attach() {
    modprobe nbd nbds_max=1
    nbd-client -unix "$NBD" /dev/nbd0 -name "$1" -block-size 4096 >&2
}
nbd_detach() { nbd-client -d /dev/nbd0 >&2; }

# start_tlshd: does the handshakes of the kernel's TLS. in_keyring FILE HOST NQN: gives the kernel the key in it, and no other, as an operator does.
# tls_sessions: how many connections have come inside of TLS so far.
start_tlshd() {
    printf '[debug]\nloglevel=1\ntls=1\n[authenticate]\nkeyrings=.nvme\n' >/run/tlshd.conf
    tlshd-13 -s -c /run/tlshd.conf 2>/run/tlshd.log &
}
in_keyring() {
    keyctl clear %keyring:.nvme >&2
    nvme-13 check-tls-key --subsysnqn "$3" --hostnqn "$2" --keydata "$(<"$1")" --identity 1 --insert >&2
}
tls_sessions() { awk '$1 == "TlsTxSw" { print $2 }' /proc/net/tls_stat; }

# kernels_target NQN HOST N [SETTING=VALUE...]: the kernel's own NVMe/TCP target at 127.0.0.1:4421, with drive N as namespace 1 of this subsystem,
# for this host; its port has these settings as well. Where they are: PORT, SUBSYSTEM, and KNOWN for the host.
kernels_target() {
    PORT=/sys/kernel/config/nvmet/ports/1
    SUBSYSTEM=/sys/kernel/config/nvmet/subsystems/$1
    KNOWN=/sys/kernel/config/nvmet/hosts/$2
    mount -t configfs none /sys/kernel/config 2>/dev/null || true
    mkdir -p "$SUBSYSTEM/namespaces/1" "$PORT" "$KNOWN"
    ln -s "$KNOWN" "$SUBSYSTEM/allowed_hosts/$2"
    drive "$3" >"$SUBSYSTEM/namespaces/1/device_path"
    echo 1 >"$SUBSYSTEM/namespaces/1/enable"
    local setting
    for setting in addr_trtype=tcp addr_adrfam=ipv4 addr_traddr=127.0.0.1 addr_trsvcid=4421 "${@:4}"; do
        echo "${setting#*=}" >"$PORT/${setting%%=*}"
    done
    ln -s "$SUBSYSTEM" "$PORT/subsystems/$1"
}
