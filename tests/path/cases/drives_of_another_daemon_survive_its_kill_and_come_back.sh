# A group over drives of this daemon and of another one: the other is killed under verified load and comes back, then this one is killed.
SHELF=
# on_shelf COMMAND: with the other daemon.
on_shelf() { STATE=$DIR/shelf SOCKET=$DIR/shelf.sock "$@"; }
start_shelf() {
    on_shelf start_daemon
    SHELF=$DAEMON
    DAEMON=$HEAD
}
kill_shelf() {
    kill -s KILL "$SHELF"
    wait "$SHELF" 2>/dev/null || true
    SHELF=
}
trap 'if [[ $SHELF ]]; then kill "$SHELF" && wait "$SHELF"; fi; cleanup' EXIT

HEAD=
start_shelf
new_drives 2 192 4096
on_shelf p group create shelf --level raid1 --drives "$(join "${DRIVES[@]}")" --yes
address=127.0.0.1:$(free_port)
remote=()
host=nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555
mkdir "$STATE"
echo "$host" >"$STATE/hostnqn"
exports=()
for name in a b; do
    on_shelf p volume create "shelf/$name" --size 64MiB
    on_shelf p export create "shelf/$name" --nvme-tcp "$address" --host nqn.2026-11.com.example:nobody
    found='[e for e in d["exports"] if e["volume"] == "shelf/'$name'"][0]'
    exports+=("$(on_shelf json "$found"'["id"]' export list)")
    remote+=("$(on_shelf json '"nvme-tcp://'"$address"'/%s?nsid=%d&loss=3s" % ('"$found"'["nqn"], '"$found"'["nsid"])' export list)")
done

start_daemon
HEAD=$DAEMON
new_drives 2 64 4096
drives=$(join "${DRIVES[0]}" "${remote[0]}" "${DRIVES[1]}" "${remote[1]}")
if p group create tank --level raid6 --drives "$drives" --yes 2>"$DIR/refused"; then fail "nobody has allowed it"; fi
if [[ -e /etc/nvme/hostnqn ]]; then host=$(cat /etc/nvme/hostnqn); fi
grep -q "this host is $host" "$DIR/refused" || fail "it does not say who it is: $(cat "$DIR/refused")"
for export in "${exports[@]}"; do on_shelf p host allow "$host" "$export"; done
p group create tank --level raid6 --drives "$drives" --yes
[[ $(json '[d["kind"] for d in d["drives"]].count("remote")' drive list) == 2 ]] || fail "$(p drive list)"
p volume create tank/disk --size 60MiB
p export create tank/disk --nbd "unix:$NBD"
uri="nbd+unix:///tank/disk?socket=$NBD"
head -c 10000000 /dev/urandom >"$DIR/image"
nbdcopy "$DIR/image" "$uri"

load() {
    fio --name=load --ioengine=nbd --uri="$uri" --rw=randrw --bs=4k --iodepth=16 --offset=16m --size=40m --time_based --runtime="$1" \
        --verify=crc32c --verify_backlog=64 --output="$DIR/fio"
}
members() { json '" ".join(m["state"] for m in d["members"])' group show tank; }
load 8 &
load=$!
sleep 1
kill_shelf
for _ in $(seq 100); do
    [[ $(members) != "in_sync faulty in_sync faulty" ]] || break
    sleep 0.1
done
[[ $(members) == "in_sync faulty in_sync faulty" ]] || fail "the members are $(members)"
start_shelf
wait_rebuilt tank
wait "$load" || fail "fio: $(cat "$DIR/fio")"

# Killed itself, it waits until targets know that it is gone, and has everything again.
load 3 &
load=$!
sleep 1
stop_daemon KILL
HEAD=
wait "$load" || true
start_daemon
HEAD=$DAEMON
wait_rebuilt tank
cmp -n 10000000 <(nbdcopy "$uri" -) "$DIR/image" || fail "nbdcopy reads other bytes"
p group scrub tank --wait
[[ $(json 'd["scrub"]["last"]["mismatch_count"]' group show tank) == 0 ]] || fail "$(p group show tank)"
