# TLS with the kernel at the other end, whose handshakes tlshd does: its initiator at Purlin's target, with keys that nvme-cli derives and with
# keys that are derived here as the specification says; and Purlin's hosts at the kernel's target. Keys for SHA-256 only: GnuTLS before 3.8.11 makes
# the binders of all others wrong.
# drives: 4096 4096 4096
# limit: 400
modprobe -a nvme-tcp nvmet nvmet-tcp tls gcm aesni_intel ublk_drv
ip link set lo up
HOST=nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555
ID=11111111-2222-4333-8444-555555555555
mkdir -p /run/keys /etc/nvme
# Purlin's hosts, too.
echo "$HOST" >/etc/nvme/hostnqn
cd /run/keys
start_tlshd

nvme-13 version >&2
nvme-13 gen-tls-key --hmac 1 >cli.tls
purlin host key generate --tls --out purlin.tls
purlin host key generate --tls --out other.tls
start_daemon
p group create tank --level raid1 --drives "$(drives 1 2)" --yes >&2
p volume create tank/a --size 64MiB >&2
p export create tank/a --nvme-tcp 127.0.0.1:4420 --host "$HOST" >&2
NQN=$(json '.exports[0].nqn' export list)
head -c 1048576 /dev/urandom >/run/data

to() {
    nvme-13 connect -t tcp -a 127.0.0.1 -s 4420 -n "$NQN" -i 2 --hostnqn "$HOST" --hostid "$ID" --ctrl-loss-tmo 60 --reconnect-delay 1 "$@" >&2
}
node() { for path in /sys/class/nvme-subsystem/*/nvme*n1; do [[ -e $path && $(<"${path%/*}/subsysnqn") == "$NQN" ]] && echo "/dev/${path##*/}" && return; done; return 1; }
is_there() { node >/dev/null; }
works() {
    wait_for 20 is_there
    dd if=/run/data of="$(node)" bs=64k oflag=direct status=none
    dd if="$(node)" bs=64k count=16 iflag=direct status=none | cmp - /run/data || fail "other data"
}
leave() { nvme-13 disconnect -n "$NQN" >&2; }

for key in purlin.tls cli.tls; do
    p host key set "$HOST" tank --tls-key $key >&2
    in_keyring $key "$HOST" "$NQN"
    before=$(tls_sessions)
    to --tls || fail "$key is refused"
    works
    (($(tls_sessions) >= before + 3)) || fail "not every queue is inside of TLS"
    leave
    echo "the kernel's initiator gets in with $key, as an old nvme-cli derives it"
done
to && fail "in without TLS"
echo "and not in the clear"
in_keyring other.tls "$HOST" "$NQN"
to --tls && fail "in with another key"
grep -o 'an NVMe host was not let in by TLS.*no key here has the identity that it offers, "NVMe1R01 ' /run/purlind.log | sed 's/peer="[^"]*" //' | tail -n 1

# derived KEY: identity and secret as the specification has them, computed by OpenSSL's HMAC alone.
hmac() { openssl dgst -sha256 -mac HMAC -macopt "hexkey:$1" -binary | xxd -p -c 64; }
hex() { printf '%s' "$1" | xxd -p -c 512; }
# expanded SECRET LABEL CONTEXT
expanded() {
    local extracted label="tls13 $2"
    extracted=$(xxd -r -p <<<"$1" | hmac "$(printf '%064d' 0)")
    printf '0020%02x%s%02x%s01' ${#label} "$(hex "$label")" ${#3} "$(hex "$3")" | xxd -r -p | hmac "$extracted"
}
derived() {
    local retained digest
    retained=$(expanded "$(cut -d: -f3 "$1" | base64 -d | head -c 32 | xxd -p -c 64)" HostNQN "$HOST")
    digest=$(printf '%s %s NVMe-over-Fabrics' "$HOST" "$NQN" | hmac "$retained" | xxd -r -p | base64 -w 0)
    identity="NVMe1R01 $HOST $NQN $digest"
    secret=$(expanded "$retained" nvme-tls-psk "01 $digest")
}
keyctl link %keyring:.nvme @s
keyctl clear %keyring:.nvme
derived cli.tls
xxd -r -p <<<"$secret" | keyctl padd psk "$identity" %keyring:.nvme >&2
to --tls || fail "the specification's key is refused"
works
echo "but with a key that is derived as the specification says"

# Under load the daemon is killed, and the host comes back inside of TLS, with what lies on the drives. Its key is replaced meanwhile.
device=$(node)
make_fs ext4 "$device"
mount -t ext4 "$device" /mnt
# The kernel sends a request in the context of who asks for it, and without MSG_NOSIGNAL: who asks while the daemon dies gets SIGPIPE.
trap '' PIPE
fio --name=load --directory=/mnt --ioengine=libaio --direct=1 --iodepth=8 --rw=randrw --bs=4k --size=16m --time_based --runtime=600 \
    --verify=crc32c --verify_backlog=64 --verify_fatal=1 --randseed=5 --eta=never --output=/run/fio &
load=$!
sleep 2
p host key set "$HOST" tank --tls-key purlin.tls --keep-old >&2
for turn in 1 2; do
    sleep 2
    before=$(tls_sessions)
    stop_daemon KILL
    start_daemon
    back() { (($(tls_sessions) >= before + 3)); }
    wait_for 60 back
    echo "killed, and connected again: $turn"
done
sleep 2
fio_ends "$load" /run/fio
umount /mnt
check_fs ext4 "$device" >&2 && echo "the file system is clean"
leave
awk '$1 == "TlsDecryptError"' /proc/net/tls_stat | tr -s '\t ' ' '
stop_daemon TERM

# The kernel's target.
SHELF=nqn.2026-11.com.example:shelf
kernels_target "$SHELF" "$HOST" 3 addr_tsas=tls1.3 addr_treq=required
bench() { purlin nvme bench 127.0.0.1:4421 "$SHELF" --queues 2 --seconds 1 "$@" >&2; }
for key in purlin.tls cli.tls; do
    in_keyring $key "$HOST" "$SHELF"
    before=$(tls_sessions)
    bench --tls --tls-key $key || fail "$key"
    (($(tls_sessions) >= before + 3)) || fail "not every queue is inside of TLS"
    echo "purlin nvme gets in at the kernel's target with $key"
done
bench --tls --tls-key other.tls && fail "in with another key"
bench && fail "in without TLS"
echo "and neither with another key nor in the clear"

# As a block device, through the daemon.
start_daemon
p nvme connect 127.0.0.1:4421 "$SHELF" --nsid 1 --ublk --name far --tls --tls-key cli.tls >&2
dd if=/run/data of=/dev/purlin/far/nvme bs=64k oflag=direct status=none
stop_daemon KILL
start_daemon
dd if=/dev/purlin/far/nvme bs=64k count=16 iflag=direct status=none | cmp - /run/data && echo "a block device of the kernel's target inside of TLS outlives a killed daemon"
awk '$1 == "TlsDecryptError"' /proc/net/tls_stat | tr -s '\t ' ' '
