# A device that a daemon left, and that the next one cannot serve, is removed with its export: what is asked of it would wait for ever.
# drives: 4096 4096 4096
modprobe ublk_drv
# As under the service manager: names of devices are for everybody all the same.
umask 077
start_daemon
umask 022
p group create tank --level raid5 --drives "$(drives 1 3)" --yes >&2
p volume create tank/v --size 64MiB >&2
p export create tank/v --ublk >&2
stat -c '%a' /dev/purlin /dev/purlin/tank
stop_daemon KILL
# Somebody else holds the server's end.
hold() { exec 9<>/dev/ublkc0; }
wait_for 20 hold
start_daemon 9>&-
id=$(json '.exports[0].id' export list)
p export show "$id" >&2
[[ -e /sys/block/ublkb0 ]] || fail "the device has gone with its daemon"
dd if=/dev/ublkb0 of=/dev/null bs=4k count=1 iflag=direct status=none 2>/dev/null 9>&- &
reader=$!
exec 9>&-
sleep 1
kill -0 "$reader" 2>/dev/null || fail "somebody serves the device"
p export delete "$id" >&2
wait "$reader" && fail "a read of a device that is gone succeeds"
[[ ! -e /sys/block/ublkb0 && ! -e /dev/purlin/tank/v ]] || fail "the device is still there"
echo "gone"
p export create tank/v --ublk >&2
dd if=/dev/purlin/tank/v of=/dev/null bs=1M count=8 iflag=direct status=none
echo "made again at $(json '.exports[0].address' export list)"
