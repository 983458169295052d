# A drive that other machines may use is pulled: hosts are told that it is gone. When it is back, under whatever name, they have it again under
# the same number.
# drives: 4096 4096
# limit: 120
ip link set lo up 2>/dev/null || ifconfig lo up
start_daemon
p drive share "$(drive 1)" --nvme-tcp 127.0.0.1:4420 --allow-any-host >&2
nqn=$(p drive shares -o json | jq -r '.shares[0].nqn')
failure() { p drive shares -o json | jq -r '.shares[0].failure'; }
reads() { purlin nvme bench 127.0.0.1:4420 "$nqn" --nsid 1 --seconds 1 --hostnqn nqn.2026-11.com.example:a >&2; }
reads
echo "a host reads it"
host unplug 1
gone() { [[ $(failure) == "the drive was pulled" ]]; }
wait_for 20 gone
if reads 2>/dev/null; then fail "a drive that is not there was read"; fi
echo "it is gone for hosts"
host plug 1
back() { [[ $(failure) == null ]]; }
wait_for 30 back
reads
echo "and there again under its number"
