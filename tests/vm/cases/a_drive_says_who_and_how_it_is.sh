# `purlin drive show` asks an NVMe drive itself; what it warns of is a warning of its group.
# drives: 4096 512
# limit: 60
host critical-warning 2 4
start_daemon
p group create tank --level raid1 --drives "$(drives 1 2)" --yes >&2
p drive show "$(drive 1)" >&2
show() { json "$1" drive show "$(drive 1)"; }
echo "serial number: $(show .serial), model: $(show .model)"
[[ $(show .identity) == nvme.* ]] || fail "identity $(show .identity)"
[[ $(show .firmware) != null ]] || fail "no firmware"
echo "block size: $(show .drive.sector_bytes), member $(show .drive.slot) of $(show .drive.group)"
echo "temperature: $(show .health.temperature_c), used: $(show .health.used_percent), warnings: $(show '.health.warnings | length')"
dd if="$(drive 1)" of=/dev/null bs=1M count=8 iflag=direct status=none
(($(show .health.read_bytes) >= 8000000)) || fail "read $(show .health.read_bytes)"
echo "the other one: $(json '.health.warnings[]' drive show "$(drive 2)")"
# Drives are asked when the daemon starts, and every minute.
stop_daemon TERM
start_daemon
warned() { [[ $(json '.warnings[]' group show tank) == "member 1, $(drive 2): it has become unreliable" ]]; }
wait_for 20 warned
echo "its group warns"
# A drive of no group, and none at all.
host unplug 2
degraded() { [[ $(json .health group show tank) == degraded ]]; }
wait_for 10 degraded
host replace 2
shown() { [[ $(json .serial drive show "$(drive 2)" 2>/dev/null) == PURLIN2-1 ]]; }
wait_for 20 shown
p drive show "$(drive 2)" | grep -o 'new and empty'
p drive show /dev/ttyS0 2>&1 || true
stop_daemon TERM
