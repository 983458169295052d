# The daemon is killed twenty times under mounted file systems that fio writes to and verifies, ext4 over RAID 6, XFS over RAID 5 and btrfs over
# RAID 10: nothing fails, I/O waits and goes on.
# drives: 4096 4096 4096 4096 4096 4096 4096 4096 4096 4096 4096
# mib: 400
# limit: 600
modprobe ublk_drv
start_daemon

# mounted KIND LEVEL FIRST LAST MIB: a file system of this size over a group of its own, with fio over it.
KINDS=() loads=()
mounted() {
    local kind=$1
    p group create "$kind" --level "$2" --drives "$(drives "$3" "$4")" --yes >&2
    p volume create "$kind/v" --size "$5MiB" >&2
    p export create "$kind/v" --ublk >&2
    make_fs "$kind" "/dev/purlin/$kind/v" >&2
    mkdir -p "/mnt/$kind"
    mount -t "$kind" "/dev/purlin/$kind/v" "/mnt/$kind"
    fio --name=load --directory="/mnt/$kind" --ioengine=libaio --direct=1 --iodepth=4 --rw=randrw --bs=4k --size=24m --time_based --runtime=600 \
        --verify=crc32c --verify_backlog=64 --verify_fatal=1 --fsync=64 --randseed=3 --eta=never --output="/run/fio.$kind" &
    loads+=($!) KINDS+=("$kind")
}
mounted ext4 raid6 1 4 96
mounted xfs raid5 5 7 320
mounted btrfs raid10 8 11 128

for round in $(seq 20); do
    sleep 0.$((round % 7 + 1))
    for load in "${loads[@]}"; do
        kill -0 "$load" 2>/dev/null || { cat /run/fio.* >&2; fail "fio ended in round $round"; }
    done
    stop_daemon KILL
    start_daemon
done
echo "killed $round times"
# They still move after the last start.
moved() { cut -d' ' -f1,5 <(tr -s ' ' <"/sys/block/$1/stat" | sed 's/^ //'); }
for device in ublkb0 ublkb1 ublkb2; do
    before=$(moved $device)
    more() { [[ $(moved $device) != "$before" ]]; }
    wait_for 60 more
done
for index in "${!loads[@]}"; do fio_ends "${loads[index]}" "/run/fio.${KINDS[index]}"; done
echo "fio verified everything"
dmesg | grep -iE 'ublkb.*(error|critical)|EXT4-fs error|Aborting journal|XFS.*(error|corrupt|shut)|BTRFS (error|critical)' >&2 && fail "the kernel saw an error"
for kind in "${KINDS[@]}"; do
    umount "/mnt/$kind"
    check_fs "$kind" "/dev/purlin/$kind/v" >&2
    p group scrub "$kind" --wait >&2
    echo "$kind is clean, and a scrub finds $(json '.job.findings.mismatch_count' group scrub "$kind" --status)"
done
