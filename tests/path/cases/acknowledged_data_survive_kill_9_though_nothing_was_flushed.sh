# A killed daemon is not a power cut: whatever was acknowledged is there afterwards, flushed or not, zeroes and space that was
# given back included, also with a drive pulled while the daemon was away.
new_drives 5 256
start_daemon
p group create tank --level raid6 --drives "$(join "${DRIVES[@]}")" --yes >/dev/null
p volume create tank/v --size 512MiB >/dev/null
p export create tank/v --nbd "unix:$NBD" >/dev/null

# The client writes, gives back and overwrites at random, keeps what should be there, and never flushes.
cat >"$DIR/client.py" <<'PY'
import os, random, sys
SIZE, BLOCK = 256 << 20, 4096
path, round_ = os.environ["WANT"], int(os.environ["ROUND"])
rng = random.Random(round_)
want = bytearray(open(path, "rb").read()) if os.path.exists(path) else bytearray(SIZE)
assert not h.is_read_only()
for at in range(0, SIZE, 1 << 20):
    got = h.pread(1 << 20, at)
    if got != want[at:at + (1 << 20)]:
        wrong = next(b for b in range(0, 1 << 20, BLOCK) if got[b:b + BLOCK] != want[at + b:at + b + BLOCK])
        sys.exit(f"round {round_}: byte {at + wrong} is not what was acknowledged")
for _ in range(400):
    length = BLOCK * rng.choice([1, 1, 2, 16, 64, 256])
    at = rng.randrange(0, SIZE - length) // BLOCK * BLOCK
    kind = rng.random()
    if kind < 0.8:
        data = rng.randbytes(length)
        h.pwrite(data, at)
        want[at:at + length] = data
    else:
        h.zero(length, at) if kind < 0.9 else h.trim(length, at)
        want[at:at + length] = bytes(length)
open(path, "wb").write(want)
PY
client() { WANT="$DIR/want" ROUND=$1 nbdsh -u "nbd+unix:///tank/v?socket=$NBD" -c - <"$DIR/client.py" || fail "round $1"; }
for round in 1 2 3 4; do
    client "$round"
    stop_daemon KILL
    if ((round == 3)); then
        pulled=${FILES[1]}
        [[ ${DRIVES[1]} == "$pulled" ]] || losetup -d "${DRIVES[1]}"
        mv "$pulled" "$pulled.pulled"
    fi
    start_daemon
done
client 5
[[ $(json 'd["health"]' group show tank) == degraded ]] || fail "a pulled drive was not missed: $(p group show tank)"
# Stopped in order, nothing has to be kept.
stop_daemon TERM
[[ -z $(find "$STATE" -name '*.kept') ]] || fail "something was kept: $(ls "$STATE")"
start_daemon
client 6
