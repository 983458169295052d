# The daemon is killed twenty times under a mounted file system that fio writes to and verifies: nothing fails, I/O waits and goes on.
# drives: 4096 4096 4096 4096
# limit: 600
modprobe ublk_drv
start_daemon
p group create tank --level raid6 --drives "$(drives 1 4)" --yes >&2
p volume create tank/v --size 96MiB >&2
p export create tank/v --ublk >&2
mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 /dev/purlin/tank/v
mount -t ext4 /dev/purlin/tank/v /mnt

fio --name=load --directory=/mnt --ioengine=libaio --direct=1 --iodepth=8 --rw=randrw --bs=4k --size=24m --time_based --runtime=600 \
    --verify=crc32c --verify_backlog=64 --verify_fatal=1 --fsync=64 --randseed=3 --eta=never --output=/run/fio &
load=$!
for round in $(seq 20); do
    sleep 0.$((round % 7 + 1))
    kill -0 "$load" 2>/dev/null || { cat /run/fio >&2; fail "fio ended in round $round"; }
    stop_daemon KILL
    start_daemon
done
echo "killed $round times"
# It still moves after the last start.
moved() { cut -d' ' -f1,5 <(tr -s ' ' </sys/block/ublkb0/stat | sed 's/^ //'); }
before=$(moved)
more() { [[ $(moved) != "$before" ]]; }
wait_for 60 more
kill -INT "$load"
# A signal's end has a status of its own.
wait "$load" || (($? == 128)) || { cat /run/fio >&2; fail "fio says that something was wrong"; }
grep -q 'err= 0' /run/fio && echo "fio verified everything"
dmesg | grep -iE 'ublkb.*(error|critical)|EXT4-fs error|Aborting journal' >&2 && fail "the kernel saw an error"
umount /mnt
e2fsck -fn /dev/purlin/tank/v >&2 && echo "e2fsck finds nothing wrong"
p group scrub tank --wait >&2
echo "a scrub finds $(json '.job.findings.mismatch_count' group scrub tank --status)"
