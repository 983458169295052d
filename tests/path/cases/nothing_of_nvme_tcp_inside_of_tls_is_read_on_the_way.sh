# A volume for `purlin nvme`, and shared drives for another daemon, over a network that is listened to: in the clear a mark in the data is seen
# there, inside of TLS never, also when both daemons are killed and connect again.
MARK="whoever reads this has it in the clear"
WIRES=()
end_wires() { for wire in "${WIRES[@]}"; do kill "$wire" 2>/dev/null || true; done; }
SHELF=
trap 'end_wires; if [[ $SHELF ]]; then kill "$SHELF" && wait "$SHELF"; fi; cleanup' EXIT

# wire NAME PORT: a network to this port. Its port is in WIRE, and what is seen there in $DIR/NAME.
wire() {
    WIRE=$(free_port)
    python3 "$CASES/../wire.py" "$WIRE" "$2" "$MARK" "$DIR/$1" &
    WIRES+=($!)
    for _ in $(seq 200); do
        if (exec 3<>"/dev/tcp/127.0.0.1/$WIRE") 2>/dev/null; then return 0; fi
        sleep 0.05
    done
    fail "nobody listens at $WIRE"
}
# seen NAME WHAT: how often.
seen() { grep -cx "$2" "$DIR/$1" || true; }
# is_secret NAME: all that went there went inside of TLS.
is_secret() {
    (($(seen "$1" tls) > 0 && $(seen "$1" plain) == 0 && $(seen "$1" other) == 0 && $(seen "$1" mark) == 0)) ||
        fail "on the network $1: $(sort "$DIR/$1" | uniq -c)"
}
CASES=$PWD/cases

on_shelf() { STATE=$DIR/shelf SOCKET=$DIR/shelf.sock "$@"; }
start_shelf() {
    on_shelf start_daemon
    SHELF=$DAEMON
    DAEMON=$HEAD
}
HEAD=
start_shelf

# A volume for `purlin nvme`.
new_drives 3 96 4096
on_shelf p group create shelf --level raid5 --drives "$(join "${DRIVES[@]}")" --yes
on_shelf p volume create shelf/disk --size 64MiB
target=$(free_port)
host=nqn.2026-11.com.example:path
on_shelf p export create shelf/disk --nvme-tcp "127.0.0.1:$target" --host "$host"
nqn=$(on_shelf json 'd["exports"][0]["nqn"]' export list)
export XDG_CONFIG_HOME=$DIR XDG_RUNTIME_DIR=$DIR
python3 -c 'import sys; open(sys.argv[1], "wb").write((sys.argv[2].encode() * 1000000)[:32000000])' "$DIR/image" "$MARK"
truncate -s 64M "$DIR/image"

# copied PORT OPTIONS: the image is written and read back by way of this port.
copied() {
    local port=$1 connected try
    shift
    rm -f "$DIR/connected"
    purlin nvme connect "127.0.0.1:$port" "$nqn" --hostnqn "$host" --nbd "unix:$NBD" --nr-io-queues 2 "$@" >"$DIR/connected" &
    connected=$!
    for try in $(seq 200); do
        if [[ -s $DIR/connected ]]; then break; fi
        kill -0 "$connected" || fail "not connected (look $try)"
        sleep 0.05
    done
    nbdcopy "$DIR/image" "nbd+unix:///?socket=$NBD"
    nbdcopy "nbd+unix:///?socket=$NBD" - | cmp - "$DIR/image" || fail "other bytes are read"
    fio --name=load --ioengine=nbd --uri="nbd+unix:///?socket=$NBD" --rw=randrw --bs=16k --iodepth=8 --offset=40m --size=20m \
        --verify=crc32c --output="$DIR/fio" || fail "fio: $(cat "$DIR/fio")"
    purlin nvme disconnect "$nqn"
    wait "$connected" || fail "connect ended with $?"
}
wire clear "$target"
copied "$WIRE"
(($(seen clear plain) > 0 && $(seen clear mark) > 0)) || fail "the mark is not seen in the clear: $(sort "$DIR/clear" | uniq -c)"

purlin host key generate --tls --out "$DIR/host.tls"
purlin host key generate --tls --hash sha384 --out "$DIR/other.tls"
on_shelf p host key set "$host" shelf --tls-key "$DIR/host.tls"
refused() {
    local expected=$1
    shift
    if purlin nvme connect "$@" --hostnqn "$host" --nbd "unix:$NBD" >"$DIR/refused" 2>&1; then fail "not refused: $*"; fi
    grep -q "$expected" "$DIR/refused" || fail "it says $(cat "$DIR/refused")"
}
refused "use TLS if it has to" "127.0.0.1:$target" "$nqn"
wire volume "$target"
refused "the target ended the handshake: it has another key" "127.0.0.1:$WIRE" "$nqn" --tls --tls-key "$DIR/other.tls"
copied "$WIRE" --tls --tls-key "$DIR/host.tls"
is_secret volume

# Shared drives for another daemon.
mkdir "$STATE"
echo nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555 >"$STATE/hostnqn"
head_host=$(cat /etc/nvme/hostnqn 2>/dev/null || cat "$STATE/hostnqn")
purlin host key generate --tls --out "$DIR/head.tls"
new_drives 2 96 4096
raw=$(free_port)
on_shelf p drive share "${DRIVES[@]}" --nvme-tcp "127.0.0.1:$raw" --host "$head_host" --tls-key "$DIR/head.tls"
wire raw "$raw"
urls=()
while read -r url; do urls+=("${url/:$raw\//:$WIRE\/}&loss=3s"); done < <(on_shelf json '"\n".join(s["url"] for s in d["shares"])' drive shares)

start_daemon
HEAD=$DAEMON
new_drives 2 96 4096
all_with() { join "${DRIVES[0]}" "${urls[0]}&tls-key=$1" "${DRIVES[1]}" "${urls[1]}&tls-key=$1"; }
if p group create tank --level raid6 --drives "$(all_with "$DIR/other.tls")" --yes 2>"$DIR/refused"; then fail "with another key"; fi
grep -q "the target ended the handshake: it has another key" "$DIR/refused" || fail "it says $(cat "$DIR/refused")"
if p group create tank --level raid6 --drives "$(all_with "$DIR/image")" --yes 2>"$DIR/refused"; then fail "with no key"; fi
grep -q "holds no key of TLS" "$DIR/refused" || fail "it says $(cat "$DIR/refused")"
if p group create tank --level raid6 --drives "$(join "${DRIVES[@]}" "${urls[@]/$WIRE/$raw}")" --yes 2>"$DIR/refused"; then fail "in the clear"; fi
grep -q "the target wants this host to use TLS, and no key was given (&tls-key=FILE)" "$DIR/refused" || fail "it says $(cat "$DIR/refused")"
p group create tank --level raid6 --drives "$(all_with "$DIR/head.tls")" --yes
p volume create tank/disk --size 64MiB
p export create tank/disk --nbd "unix:$NBD"
uri="nbd+unix:///tank/disk?socket=$NBD"
nbdcopy "$DIR/image" "$uri"

load() {
    fio --name=load --ioengine=nbd --uri="$uri" --rw=randrw --bs=4k --iodepth=16 --offset=40m --size=20m --time_based --runtime="$1" \
        --verify=crc32c --verify_backlog=64 --output="$DIR/fio"
}
members() { json '" ".join(m["state"] for m in d["members"])' group show tank; }
# The shelf is killed, its drives leave the group, and come back.
load 8 &
load=$!
sleep 1
before=$(seen raw tls)
kill -s KILL "$SHELF"
wait "$SHELF" 2>/dev/null || true
for _ in $(seq 200); do
    [[ $(members) != "in_sync faulty in_sync faulty" ]] || break
    sleep 0.1
done
[[ $(members) == "in_sync faulty in_sync faulty" ]] || fail "the members are $(members)"
start_shelf
wait_rebuilt tank
wait "$load" || fail "fio: $(cat "$DIR/fio")"
(($(seen raw tls) > before)) || fail "nobody connected again"

# Then this daemon.
load 3 &
load=$!
sleep 1
stop_daemon KILL
HEAD=
wait "$load" || true
start_daemon
HEAD=$DAEMON
wait_rebuilt tank
cmp -n 32000000 <(nbdcopy "$uri" -) "$DIR/image" || fail "other bytes are read"
p group scrub tank --wait
[[ $(json 'd["scrub"]["last"]["mismatch_count"]' group show tank) == 0 ]] || fail "$(p group show tank)"
is_secret raw

# Neither command nor log shows a key, as it is or as it is kept.
{
    p status --once --output json
    p group show tank --output json
    p drive list --output json
    on_shelf p host list --output json
    on_shelf p drive shares --output json
    cat "$DIR/daemon.log"
} >"$DIR/shown"
grep -q share-1 "$DIR/shown" || fail "nothing is shown"
for shown in NVMeTLSkey "$(cut -d: -f3 "$DIR/host.tls")" "$(cut -d: -f3 "$DIR/head.tls")" "$(cut -d: -f3 "$DIR/other.tls")"; do
    if grep -qF -- "$shown" "$DIR/shown"; then fail "a key is shown"; fi
done
