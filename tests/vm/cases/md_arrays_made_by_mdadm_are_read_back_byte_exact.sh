# Linux md arrays of every level that Purlin reads, made by mdadm and filled through the kernel: imported, and read through the
# kernel's NBD device, which is read-only. Every byte is what was written: with all members, and with as many missing as the level
# survives. The members are RAM disks, and NVMe drives of another size and of both block sizes.
# drives: 4096 512
# mib: 8
export MDADM_NO_UDEV=1
modprobe -a raid0 raid1 raid10 raid456
modprobe brd rd_nr=5 rd_size=6144
echo 1000000 | tee /proc/sys/dev/raid/speed_limit_min >/proc/sys/dev/raid/speed_limit_max
ram=(/dev/ram0 /dev/ram1 /dev/ram2 /dev/ram3 /dev/ram4)
nvme=("$(drive 1)" "$(drive 2)")
dd if=/dev/urandom of=/run/written bs=1M count=28 status=none
start_daemon

# Parity and copies fit what the new array holds. RAID 0 has none, and no such files. `mdadm --wait` looks too seldom.
synchronised() {
    local state=/sys/block/md0/md
    [[ ! -e $state/sync_action ]] || [[ $(<$state/sync_action) == idle && $(<$state/resync_start) == none && $(<$state/degraded) == 0 ]]
}

# reads WHAT DRIVE...: the array on these drives holds what was written.
reads() {
    local what=$1 size
    shift
    p group import-md --name old --drives "$(IFS=,; echo "$*")" >&2
    p export create old/md --nbd "unix:$NBD" --read-only >&2
    nbd_attach old/md
    size=$(blockdev --getsize64 /dev/nbd0)
    ((size == written)) || fail "$what: $size bytes, not $written"
    (($(blockdev --getro /dev/nbd0))) || fail "$what: it can be written to"
    cmp -n "$size" /dev/nbd0 /run/written || fail "$what"
    nbd_detach
    p import forget old --force >&2
}

turn=0
# array LEVEL LAYOUT METADATA LOST DRIVE...: LOST members may be missing. The first that is differs from array to array.
array() {
    local level=$1 layout=$2 metadata=$3 lost=$4 drives rest
    shift 4
    drives=("$@")
    mdadm --create /dev/md0 --run --quiet --level="$level" --raid-devices=$# --metadata="$metadata" \
        ${layout:+--layout="$layout"} $([[ $level == raid1 ]] || echo --chunk=64) "$@" >&2
    wait_for 60 synchronised
    written=$(blockdev --getsize64 /dev/md0)
    # In pieces of less than a stripe: rows are written whole, and in parts.
    dd if=/run/written of=/dev/md0 bs=48k count=$((written / 49152 + 1)) iflag=fullblock conv=fsync status=none 2>/dev/null || true
    mdadm --stop /dev/md0 >&2
    reads "$level $layout" "$@"
    if ((lost)); then
        rest=()
        for n in $(seq 0 $(($# - 1))); do
            (((n + $# - turn % $#) % $# < lost)) || rest+=("${drives[n]}")
        done
        reads "$level $layout without $lost" "${rest[@]}"
        turn=$((turn + 1))
    fi
    echo "$level${layout:+ $layout}, metadata $metadata, $# members: every byte, and without $lost of them"
    mdadm --zero-superblock "$@" >&2
}

array raid0 '' 1.2 0 "${ram[@]:0:2}" "${nvme[1]}"
array raid1 '' 1.0 1 "${ram[@]:0:2}"
array raid1 '' 1.2 2 "${ram[2]}" "${nvme[@]}"
array raid4 '' 1.2 1 "${ram[@]:0:2}" "${nvme[@]}"
array raid5 left-symmetric 1.2 1 "${ram[@]:0:4}"
array raid5 left-asymmetric 1.1 1 "${ram[@]:0:4}"
array raid5 right-symmetric 1.2 1 "${ram[@]:0:4}"
array raid5 right-asymmetric 1.0 1 "${ram[@]:0:4}"
array raid6 left-symmetric 1.2 2 "${ram[@]}"
array raid6 ddf-N-continue 1.2 2 "${ram[@]}"
array raid10 n2 1.2 1 "${ram[@]:0:3}"
array raid10 f2 1.2 1 "${ram[@]:0:4}"
array raid10 o2 1.2 1 "${ram[@]:0:4}"
