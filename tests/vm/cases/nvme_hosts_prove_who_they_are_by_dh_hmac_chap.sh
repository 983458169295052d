# DH-HMAC-CHAP with the kernel at the other end: its initiator at Purlin's target, and `purlin nvme` at the kernel's target. Right secrets
# are let in and wrong ones are not, one way and both ways, with and without a Diffie-Hellman group.
# drives: 4096 4096 4096
# limit: 280
modprobe -a nvme-tcp nvmet nvmet-tcp nvme-auth dh_generic hmac sha256_generic sha512_generic
ip link set lo up 2>/dev/null || ifconfig lo up
HOST=nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555
ID=11111111-2222-4333-8444-555555555555
mkdir -p /run/keys
cd /run/keys
# One of Purlin's, and those of nvme-cli with each hash function.
purlin host key generate --out host.key
stat -c %a host.key
for hash in 1 2 3; do nvme gen-dhchap-key -m "$hash" -n "$HOST" >"cli-$hash.key"; done
purlin host key generate --hash sha512 >ctrl.key
purlin host key generate >wrong.key

start_daemon
p group create tank --level raid1 --drives "$(drives 1 2)" --yes >&2
p volume create tank/a --size 32MiB >&2
p host key set "$HOST" tank --dhchap-secret host.key
p export create tank/a --nvme-tcp 127.0.0.1:4420 --host "$HOST" >&2
NQN=$(json '.exports[0].nqn' export list)

# to SECRET [CTRL-SECRET]: connects the kernel's initiator. nvme-cli takes secrets themselves.
to() {
    local both=(--dhchap-secret "$(<"$1")")
    [[ ${2-} ]] && both+=(--dhchap-ctrl-secret "$(<"$2")")
    nvme connect -t tcp -a 127.0.0.1 -s 4420 -n "$NQN" -i 2 --hostnqn "$HOST" --hostid "$ID" --ctrl-loss-tmo 20 --reconnect-delay 1 \
        "${both[@]}" >&2
}
node() { for path in /sys/class/nvme-subsystem/*/nvme*n1; do [[ -e $path && $(<"${path%/*}/subsysnqn") == "$NQN" ]] && echo "/dev/${path##*/}" && return; done; return 1; }
is_there() { node >/dev/null; }
works() {
    wait_for 20 is_there
    head -c 65536 /dev/urandom >/run/data
    dd if=/run/data of="$(node)" bs=64k oflag=direct status=none
    dd if="$(node)" bs=64k count=1 iflag=direct status=none | cmp - /run/data || fail "other data"
    nvme disconnect -n "$NQN" >&2
}

for group in null ffdhe2048 ffdhe3072 ffdhe8192; do
    for key in host.key cli-1.key cli-2.key cli-3.key; do
        [[ $group == null || $key == host.key ]] || continue
        p host key set "$HOST" tank --dhchap-secret "$key" --dh-group "$group" >&2
        to "$key" || fail "$key with $group is refused"
        works
        echo "the kernel's initiator gets in with $key, $group"
    done
    to wrong.key && fail "a wrong secret got in"
    echo "and not with another secret"
done
nvme connect -t tcp -a 127.0.0.1 -s 4420 -n "$NQN" --hostnqn "$HOST" --hostid "$ID" >&2 && fail "in without a secret"
echo "nor without one"

p host key set "$HOST" tank --dhchap-secret host.key --dhchap-ctrl-secret ctrl.key --dh-group ffdhe2048
to host.key ctrl.key || fail "both ways is refused"
works
echo "both ways"
to host.key wrong.key && fail "the initiator believes a target with another secret"
echo "and a target with another secret is not believed"
p host show "$HOST" | grep authenticates | tr -s ' '
{ p host list; p host show "$HOST"; p export list; json . host list; } >/run/shown
grep -q "$HOST" /run/shown || fail "the host is not shown"
grep -q DHHC /run/shown && fail "a secret is shown"
echo "no secret is shown"

# Connected, the daemon is killed: the host authenticates again, with what lies on the drives. The daemon would not end before the kernel
# gives up, if it looked at the new device at this moment, which it serves itself.
to host.key ctrl.key
wait_for 20 is_there
device=$(node)
stop_daemon KILL
: >/run/purlind.log
PURLIN_LOG=info,export=debug start_daemon
dd if=/run/data of="$device" bs=64k oflag=direct status=none
dd if="$device" bs=64k count=1 iflag=direct status=none | cmp - /run/data && echo "after a killed daemon as well"
# Its secret is replaced while it works: the kernel authenticates at once with the one that it is given.
p host key set "$HOST" tank --dhchap-secret cli-1.key --dhchap-ctrl-secret ctrl.key --dh-group ffdhe2048 >&2
control=$(echo /sys/class/nvme-subsystem/*/nvme[0-9]*/dhchap_secret | xargs -n1 | while read -r file; do
    [[ -e $file && $(<"${file%/*}/subsysnqn") == "$NQN" ]] && echo "$file" && break
done)
dmesg -c >/dev/null
cat cli-1.key >"$control"
# Its admin queue and both I/O queues. The target counts one as proven when the kernel has believed the target.
again() { (($(grep -c 'an NVMe host has authenticated.*is_first=false' /run/purlind.log) >= 3)); }
failed() { dmesg | grep -E 'qid [0-9]+: .*(fail|error)' >&2; }
decided() { failed || again; }
wait_for 20 decided
dmesg | grep authenticat >&2
failed && fail "a queue did not authenticate again"
dd if="$device" bs=64k count=1 iflag=direct status=none | cmp - /run/data && echo "and again while it works, with another secret"
p host key set "$HOST" tank --dhchap-secret host.key --dhchap-ctrl-secret ctrl.key --dh-group ffdhe2048 >&2
nvme disconnect -n "$NQN" >&2

# purlin nvme at Purlin's target.
bench() { purlin nvme bench "$1" "$2" --hostnqn "$HOST" --seconds 1 "${@:3}" >&2; }
bench 127.0.0.1 "$NQN" --dhchap-secret host.key --dhchap-ctrl-secret ctrl.key --queues 2
echo "purlin nvme at Purlin's target"
stop_daemon TERM

# And at the kernel's.
SHELF=nqn.2026-11.com.example:shelf
kernels_target "$SHELF" "$HOST" 3
[[ -e $KNOWN/dhchap_key ]] || fail "this kernel's target does not authenticate"
cat host.key >"$KNOWN/dhchap_key"
for group in null ffdhe2048 ffdhe8192; do
    for hash in 'hmac(sha256)' 'hmac(sha512)'; do
        echo "$group" >"$KNOWN/dhchap_dhgroup"
        echo "$hash" >"$KNOWN/dhchap_hash"
        bench 127.0.0.1:4421 "$SHELF" --dhchap-secret host.key --queues 2 || fail "$group, $hash"
        echo "purlin nvme gets in at the kernel's target with $group, $hash"
    done
done
cat ctrl.key >"$KNOWN/dhchap_ctrl_key"
bench 127.0.0.1:4421 "$SHELF" --dhchap-secret host.key --dhchap-ctrl-secret ctrl.key
echo "both ways"
bench 127.0.0.1:4421 "$SHELF" --dhchap-secret host.key --dhchap-ctrl-secret wrong.key 2>/run/refused && fail "it believes another target"
grep -o 'did not prove who it is.*' /run/refused
bench 127.0.0.1:4421 "$SHELF" --dhchap-secret wrong.key 2>/run/refused && fail "a wrong secret got in"
# The kernel's target may hang up before it has said so.
grep -qE "refused to authenticate this host|had this host's proof: the secret may be another one" /run/refused || fail "$(</run/refused)"
echo "and does not let in who has another secret"
bench 127.0.0.1:4421 "$SHELF" 2>/run/refused && fail "in without a secret"
grep -o 'wants this host to authenticate.*' /run/refused
