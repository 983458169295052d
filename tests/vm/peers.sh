# Linux md beside Purlin over the same six NVMe drives: how many drive operations, and how many bytes, one operation of a user
# costs. Run by `./x vm peers`; a comparison, not a test, so it is not among the cases.
#
# Counted in /sys/block/*/stat of all members, so merged requests are one, as the drives see them. Each workload ends with a flush,
# and the count goes on until the drives have been idle for a while: what is deferred (bitmaps, superblocks, parity in md's stripe
# cache, Purlin's log and sums) belongs to the operations that caused it.
# drives: 4096 4096 4096 4096 4096 4096
# mib: 1024
# limit: 1800
export MDADM_NO_UDEV=1
RANGE_MIB=96
IDLE_S=1
SETTLE_S=20
modprobe -a raid10 raid456 ublk_drv
IFS=, read -ra members <<<"$(drives 1 6)"
rows=()

# The kernel counts a flush as a write, too, with the bytes of the write that it precedes, or none: here it is a flush only. md writes
# superblocks and bitmaps so; writes with FUA count as writes.
#
# counted: reads, sectors read, writes, sectors written, flushes of all members together (Documentation/block/stat.rst).
counted() {
    local member
    for member in "${members[@]}"; do cat "/sys/block/${member##*/}/stat"; done |
        awk '{ r += $1; rs += $3; w += $5; ws += $7; f += $16 } END { print r, rs, w, ws, f }'
}

# settle: until the members are idle. An md bitmap is cleared some seconds after; here, once the workload has ended, sooner.
settle() {
    local before now until=$((SECONDS + SETTLE_S)) interval=/sys/block/md0/md/bitmap/time_base
    [[ ! -e $interval ]] || echo 1 >$interval
    now=$(counted)
    until [[ $now == "${before:-}" ]]; do
        ((SECONDS < until)) || fail "the drives are not idle within $SETTLE_S s: $before, then $now"
        before=$now
        # Two passes of the bitmap thread at least, where there is a bitmap.
        if [[ -e $interval ]]; then sleep 2; else sleep $IDLE_S; fi
        now=$(counted)
    done
    [[ ! -e $interval ]] || echo 5 >$interval
}

# cell WORKLOAD FIO-ARGUMENTS: one row of the table.
cell() {
    local workload=$1 before after
    shift
    before=$(counted)
    fio --name=cell --filename="$device" --ioengine=libaio --direct=1 --randrepeat=0 --randseed=$((1 + ${#rows[@]})) --refill_buffers \
        --size=${RANGE_MIB}m --end_fsync=1 --output-format=json --output=/run/fio --eta=never "$@" >&2 || fail "$contender: $workload"
    settle
    after=$(counted)
    rows+=("$(jq '.jobs[0] | .read.total_ios + .write.total_ios' /run/fio) $before $after|$contender|$workload")
    echo "${rows[-1]}" >&2
}

# What a stripe of each level holds for users: strips of 64 KiB. Devices cannot always say so: ublk's optimal size is a power of two.
declare -A data_strips=([raid5]=5 [raid6]=4 [raid10]=3)

# measure CONTENDER DEVICE LEVEL FAIL...: all workloads, after everything was written once; some again once the command FAIL has taken a member out.
measure() {
    local contender=$1 device=$2 stripe=$((data_strips[$3] * 65536))
    shift 3
    fio --name=fill --filename="$device" --ioengine=libaio --direct=1 --iodepth=4 --rw=write --bs=1m --size=${RANGE_MIB}m \
        --refill_buffers --end_fsync=1 --minimal >/run/fio || fail "$contender: cannot be written"
    settle
    cell "random 4K reads" --rw=randread --bs=4k --iodepth=32 --io_size=1536k
    cell "random 4K writes - depth 1" --rw=randwrite --bs=4k --iodepth=1 --io_size=768k
    cell "random 4K writes - depth 32" --rw=randwrite --bs=4k --iodepth=32 --io_size=1536k
    cell "random 4K writes - fsync each" --rw=randwrite --bs=4k --iodepth=1 --io_size=384k --fsync=1
    cell "sequential 1 MiB writes" --rw=write --bs=1m --iodepth=4 --io_size=16m
    cell "whole stripes" --rw=randwrite --bs="$stripe" --iodepth=4 --io_size=$((stripe * 48))
    cell "66/33 OLTP of 8K - depth 32" --rw=randrw --rwmixread=66 --bs=8k --iodepth=32 --io_size=3m
    "$@" >&2
    settle
    cell "degraded: random 4K reads" --rw=randread --bs=4k --iodepth=32 --io_size=1536k
    cell "degraded: 4K writes - depth 32" --rw=randwrite --bs=4k --iodepth=32 --io_size=1536k
}

# md CONTENDER LEVEL MDADM-ARGUMENTS
md() {
    local contender=$1
    make_md "${@:2}"
    measure "$contender" /dev/md0 "$2" fail_md
    stop_md
}
make_md() {
    mdadm --create /dev/md0 --run --quiet --assume-clean --level="$1" --raid-devices=6 --chunk=64 "${@:2}" "${members[@]}" >&2
}
fail_md() { mdadm --quiet /dev/md0 --fail "${members[1]}"; }
stop_md() {
    wait_for 10 mdadm --quiet --stop /dev/md0
    empty
}

# vdo CONTENDER LEVEL MDADM-ARGUMENTS: dm-vdo with its smallest index, over md. It finds equal blocks; fio writes none.
vdo() {
    local contender=$1
    make_md "${@:2}"
    vdoformat --uds-memory-size=0.25 --slab-bits=15 --logical-size=1G /dev/md0 >&2
    dmsetup create --noudevsync --noudevrules vdo \
        --table "0 2097152 vdo V4 /dev/md0 $(($(blockdev --getsize64 /dev/md0) / 4096)) 4096 32768 16380" >&2
    measure "$contender" "/dev/$(basename /sys/block/dm-*)" "$2" fail_md
    wait_for 10 dmsetup remove --noudevsync vdo
    stop_md
}

# purlin_group CONTENDER LEVEL GROUP-ARGUMENTS
purlin_group() {
    local contender=$1 level=$2
    shift 2
    p group create tank --level "$level" --drives "$(drives 1 6)" --strip 64KiB "$@" --yes >&2
    p volume create tank/v --size ${RANGE_MIB}MiB >&2
    p export create tank/v --ublk --number 0 >&2
    measure "$contender" /dev/ublkb0 "$level" p drive fail tank 1 --yes
    p group delete tank --yes >&2
    empty
}

# empty: drives as new.
empty() {
    local member
    for member in "${members[@]}"; do wait_for 10 blkdiscard -f "$member" 2>/run/blkdiscard; done
}

# report: what was measured, also if a later contender fails.
report() {
    ((${#rows[@]})) || return 0
    echo "Drive operations for each operation of a user: six drives, strips of 64 KiB, $RANGE_MIB MiB written once before."
    echo "The drives are emulated: nothing here says how fast anything is. Only counts are compared."
    echo "Included: a flush at the end of each workload, and whatever is deferred, until the drives are idle."
    printf '%s\n' "${rows[@]}" | awk -F '|' '
        # A table for each workload, in the order of the runs.
        {
            split($1, n, " ")
            for (i = 2; i <= 6; i++) each[i] = (n[i + 5] - n[i]) / n[1]
            each[4] -= each[6]
            if (!($3 in table)) { order[++tables] = $3 }
            table[$3] = table[$3] sprintf("  %-30s %8.2f %9.1f %8.2f %9.1f %8.3f\n", $2, each[2], each[3] / 2, each[4], each[5] / 2, each[6])
            csv = csv sprintf("csv:\"%s\",\"%s\",%d,%.3f,%.2f,%.3f,%.2f,%.3f\n", $2, $3, n[1], each[2], each[3] / 2, each[4], each[5] / 2, each[6])
        }
        END {
            for (i = 1; i <= tables; i++)
                printf "\n%-32s %8s %9s %8s %9s %8s\n%s", order[i], "reads", "KiB read", "writes", "KiB wr.", "flushes", table[order[i]]
            printf "\ncsv:contender,workload,operations,reads,kib_read,writes,kib_written,flushes\n%s", csv
        }'
}

trap report EXIT
start_daemon
md "md raid5, bitmap" raid5 --bitmap=internal
purlin_group "Purlin raid5" raid5
purlin_group "Purlin raid5, no log or sums" raid5 --crash-safety off --checksums off
md "md raid6, bitmap" raid6 --bitmap=internal
purlin_group "Purlin raid6" raid6
md "md raid10, bitmap" raid10 --bitmap=internal
purlin_group "Purlin raid10" raid10
md "md raid5, ppl" raid5 --consistency-policy=ppl
md "md raid5, fine bitmap" raid5 --bitmap=internal --bitmap-chunk=64K
modprobe dm-vdo
vdo "dm-vdo over md raid5, bitmap" raid5 --bitmap=internal
