# The daemon puts another program in its place three times under a mounted file system that fio writes to and verifies: one process
# all along, nothing fails, I/O waits and goes on. So it does when the daemon is stopped and started again, as a service manager restarts it.
# drives: 4096 4096 4096 4096
# limit: 300
modprobe ublk_drv
cp /usr/bin/purlind /run/purlind-next
start_daemon
before=$DAEMON
p group create tank --level raid6 --drives "$(drives 1 4)" --yes >&2
p volume create tank/v --size 96MiB >&2
p export create tank/v --ublk >&2
make_fs ext4 /dev/purlin/tank/v
mount -t ext4 /dev/purlin/tank/v /mnt
fio --name=load --directory=/mnt --ioengine=libaio --direct=1 --iodepth=8 --rw=randrw --bs=4k --size=16m --time_based --runtime=600 \
    --verify=crc32c --verify_backlog=64 --verify_fatal=1 --fsync=64 --randseed=3 --eta=never --output=/run/fio &
load=$!
sleep 2
for program in "" "--program /run/purlind-next" ""; do
    # shellcheck disable=SC2086
    echo "measured: nobody was served for $(json '.pause_us / 1000 | floor' upgrade $program) ms, under emulation" >&2
    sleep 2
    kill -0 "$load" || { cat /run/fio >&2; fail "fio ended"; }
done
[[ $(pidof purlind purlind-next) == "$before" ]] && echo "one process all along"
uptime_ms() { sed 's/ .*//; s/\.\(.*\)/\10/' /proc/uptime; }
began=$(uptime_ms)
stop_daemon TERM
start_daemon
echo "measured: stopped and started again within $(($(uptime_ms) - began)) ms, under emulation" >&2
moved() { cut -d' ' -f1,5 <(tr -s ' ' </sys/block/ublkb0/stat | sed 's/^ //'); }
before_last=$(moved)
more() { [[ $(moved) != "$before_last" ]]; }
wait_for 60 more
fio_ends "$load" /run/fio
echo "fio verified everything"
dmesg | grep -iE 'ublkb.*(error|critical)|EXT4-fs error|Aborting journal' >&2 && fail "the kernel saw an error"
umount /mnt
check_fs ext4 /dev/purlin/tank/v >&2 && echo "e2fsck finds nothing wrong"
