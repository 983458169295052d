# A daemon without privileges, over drives that it was given, makes a block device that it owns; the kernel takes that away when the
# daemon ends, as it does with all devices of those who have no privileges.
# drives: 4096 4096 4096
# limit: 120
modprobe ublk_drv
# What a udev rule does on a real machine: hand the nodes over.
chmod 666 /dev/ublk-control
mkdir -p /run/own
chown 1000:1000 /run/own
for n in 1 2 3; do chown 1000 "$(drive $n)"; done
hand_over() {
    while sleep 0.05; do
        # One that goes meanwhile is none of its business.
        for node in /dev/ublkc* /dev/ublkb*; do [[ ! -e $node ]] || chown 1000 "$node" || true; done
    done
}
hand_over &
handing=$!
STATE=/run/own/state SOCKET=/run/own/socket
# In a subshell, which it becomes.
as_user() { exec setpriv --reuid 1000 --regid 1000 --clear-groups --inh-caps=-all --bounding-set=-all "$@"; }
(as_user purlind --state $STATE --socket $SOCKET >&2 2>&1) &
DAEMON=$!
answers() { p group list >/dev/null 2>&1; }
wait_for 60 answers
p group create tank --level raid5 --drives "$(drives 1 3)" --yes >&2
p volume create tank/v --size 32MiB >&2
p export create tank/v --ublk >&2
owned() { [[ $(stat -c %u /dev/ublkb0) == 1000 ]]; }
wait_for 20 owned
cat >/run/job <<'END'
[verify]
filename=/dev/ublkb0
ioengine=libaio
direct=1
iodepth=8
rw=randrw
bsrange=4k-256k
blockalign=4k
serialize_overlap=1
size=8m
verify=crc32c
verify_fatal=1
randseed=9
END
(as_user fio --minimal /run/job >/run/fio) || fail "fio"
echo "fio verifies the device as its owner"
p group show tank >&2
stop_daemon TERM
gone() { [[ ! -e /sys/block/ublkb0 ]]; }
wait_for 30 gone
echo "the device went with the daemon"
(as_user purlind --state $STATE --socket $SOCKET >&2 2>&1) &
DAEMON=$!
wait_for 60 answers
wait_for 20 owned
(as_user dd if=/dev/ublkb0 of=/dev/null bs=64k count=8 iflag=direct status=none) && echo "and came back with the next"
kill "$handing"
