# Flushes, FUA and discards of a block device's user arrive at the members, as the kernel's own trace of their requests says.
# drives: 4096 4096 4096 4096
modprobe ublk_drv
trace=/sys/kernel/tracing
mount -t tracefs none $trace
start_daemon
# Without what writes with FUA and flushes by itself.
p group create tank --level raid6 --drives "$(drives 1 4)" --crash-safety off --checksums off --yes >&2
p volume create tank/v --size 64MiB >&2
p export create tank/v --ublk >&2
device=/dev/purlin/tank/v
dd if=/dev/urandom of="$device" bs=1M count=64 oflag=direct conv=fsync status=none
sleep 1

# asked FLAGS: at how many members a request with these flags has arrived (blk_fill_rwbs of the kernel).
asked() {
    local n number count=0
    for n in 1 2 3 4; do
        number=$(<"/sys/class/block/$(basename "$(drive "$n")")/dev")
        if grep -Eq "block_rq_issue: ${number/:/,} $1 " $trace/trace; then count=$((count + 1)); fi
    done
    echo "$count"
}
# traced COMMAND: what the members are asked while it runs.
traced() {
    echo >$trace/trace
    echo 1 >$trace/events/block/block_rq_issue/enable
    "$@"
    echo 0 >$trace/events/block/block_rq_issue/enable
}
write() { dd if=/dev/urandom of="$device" bs=4k count=1 seek="$1" conv=notrunc status=none "${@:2}"; }

traced write 5 oflag=direct
echo "a write: $(asked 'W[A-Z]*') members, with FUA $(asked 'WF[A-Z]*'), flushed $(asked 'F[A-Z]*')"
traced write 7 oflag=direct,dsync
echo "a write with FUA: $(asked 'WF[A-Z]*') members"
flushed() { sync -d "$device"; }
write 9
traced flushed
echo "fsync: $(asked 'F[A-Z]*') members"
given_back() {
    blkdiscard --offset 0 --length $((32 << 20)) "$device"
    all() { (($(asked 'D[A-Z]*') == 4)); }
    wait_for 20 all
}
traced given_back
echo "a discard: $(asked 'D[A-Z]*') members"
