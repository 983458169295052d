# The unit that the project ships, under the real systemd: a restart, a reload (which is an upgrade), a stop and a start, and a kill after which
# systemd starts the daemon by itself. Meanwhile fio writes to a mounted file system and verifies, and a client of the API's socket is never
# refused. The unit forbids nothing that the daemon does.
# init: systemd
# drives: 4096 4096 4096 4096 512
# limit: 420
SOCKET=/run/purlin/purlind.sock
[[ $(</proc/1/comm) == systemd ]] && echo "systemd is the first process"
modprobe ublk_drv
systemctl start purlind
of_unit() { systemctl show --value --property "$1" purlind; }
[[ $(of_unit ActiveState) == active ]] && echo "the service is up once the daemon says so"
# Every thread has PF_MEMALLOC_NOIO and PF_LOCAL_THROTTLE of linux/sched.h, and all memory is locked.
mapfile -t threads < <(sed 's/.*) //' "/proc/$(of_unit MainPID)/task"/*/stat | cut -d ' ' -f 7)
((${#threads[@]} > 2)) || fail "the daemon has a thread for each shard, and not ${#threads[@]}"
for flags in "${threads[@]}"; do (((flags & 0x180000) == 0x180000)) || fail "a thread has the flags $flags"; done
echo "no thread waits for block devices when it needs memory"
(($(awk '$1 == "VmLck:" { print $2 }' "/proc/$(of_unit MainPID)/status") > 64 << 10)) && echo "nothing of the daemon is swapped out"
p group create tank --level raid6 --drives "$(drives 1 4)" --yes >&2
p volume create tank/v --size 96MiB >&2
p export create tank/v --ublk >&2
p export create tank/v --nbd unix:/run/purlin/nbd.sock >&2
make_fs ext4 /dev/purlin/tank/v
mount -t ext4 /dev/purlin/tank/v /mnt
fio --name=load --directory=/mnt --ioengine=libaio --direct=1 --iodepth=8 --rw=randrw --bs=4k --size=16m --time_based --runtime=900 \
    --verify=crc32c --verify_backlog=64 --verify_fatal=1 --fsync=64 --randseed=3 --eta=never --output=/run/fio &
load=$!

moved() { cut -d' ' -f1,5 <(tr -s ' ' </sys/block/ublkb0/stat | sed 's/^ //'); }
uptime_ms() { sed 's/ .*//; s/\.\(.*\)/\10/' /proc/uptime; }
goes_on() {
    local before
    before=$(moved)
    more() { [[ $(moved) != "$before" ]]; }
    wait_for 60 more
}
# again WHAT COMMAND: afterwards the device serves as before, and the sockets are the same.
again() {
    local began sockets
    sockets=$(stat -c '%i %a %u' "$SOCKET" /run/purlin/nbd.sock)
    began=$(uptime_ms)
    "${@:2}"
    echo "measured: $1 within $(($(uptime_ms) - began)) ms, under emulation" >&2
    goes_on
    kill -0 "$load" 2>/dev/null || { cat /run/fio >&2; fail "$1: fio ended"; }
    [[ $(stat -c '%i %a %u' "$SOCKET" /run/purlin/nbd.sock) == "$sockets" ]] || fail "$1: the sockets are others"
    sleep 2
}
sleep 2
[[ $(of_unit NFileDescriptorStore) == 2 ]] && echo "systemd keeps the sockets of the API and of NBD"
# Asks again and again; what it is told while nobody serves comes late, and is no refusal.
(
    until [[ -e /run/asked-enough ]]; do
        p group list >/dev/null 2>>/run/refused || echo "after $(uptime_ms) ms" >>/run/refused
    done
) &
asking=$!
daemon=$(of_unit MainPID)
again "restarted" systemctl restart purlind
[[ $(of_unit MainPID) != "$daemon" ]] && echo "restarted: another process"
daemon=$(of_unit MainPID)
again "reloaded" systemctl reload purlind
[[ $(of_unit MainPID) == "$daemon" ]] && echo "reloaded: the same process"
touch /run/asked-enough
wait "$asking"
[[ -s /run/refused ]] && { cat /run/refused >&2; fail "a client was refused"; }
echo "nobody was refused"

restarted_by_itself() { [[ $(of_unit MainPID) != "$daemon" && $(of_unit ActiveState) == active ]]; }
killed() {
    kill -KILL "$daemon"
    wait_for 60 restarted_by_itself
}
again "killed and started by systemd" killed
[[ $(of_unit NRestarts) == 1 ]] && echo "killed: systemd started it again"
stopped() {
    systemctl stop purlind
    [[ $(of_unit Result) == success ]] || fail "the stop was not in order: $(of_unit Result)"
    # Until somebody serves again, I/O waits.
    local before
    before=$(moved)
    sleep 1
    [[ $(moved) == "$before" ]] && echo "stopped: I/O waits"
    systemctl start purlind
}
stopped
goes_on

# Files, and a port that hosts reach.
mkdir /srv
p group create files --level raid1 --drives /srv/a,/srv/b --create-files 64MiB --yes >&2
p volume create files/v --size 16MiB >&2
nqn=$(json .object.nqn export create files/v --nvme-tcp 127.0.0.1:4420 --allow-any-host)
[[ $(purlin nvme discover 127.0.0.1:4420 --output json) == *"\"$nqn\""* ]] && echo "files are drives, and hosts find an export"

# A drive goes, and a spare is filled.
p spare add tank "$(drive 5)" --yes >&2
host unplug 1
rebuilt() { [[ $(json '"\(.health) \(.spares | length) \([.jobs[] | select(.state == "running")] | length)"' group show tank) == "optimal 0 0" ]]; }
wait_for 120 rebuilt
echo "a spare was filled"
fio_ends "$load" /run/fio
echo "fio verified everything"
umount /mnt
check_fs ext4 /dev/purlin/tank/v >&2 && echo "e2fsck finds nothing wrong"
grep -q ready /run/purlind.log || fail "the daemon's log is not there"
grep -iE 'not permitted|permission|denied|EPERM|EACCES' /run/purlind.log >&2 && fail "the unit forbids what the daemon does"
dmesg | grep -iE 'ublkb.*(error|critical)|EXT4-fs error|Aborting journal|audit:.*SECCOMP' >&2 && fail "the kernel saw an error"
systemctl stop purlind
[[ $(of_unit ActiveState) == inactive ]] && echo "stopped in order"
