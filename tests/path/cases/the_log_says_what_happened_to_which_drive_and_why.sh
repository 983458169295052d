# A drive refuses what is written to it, blocks of another one rot or cannot be read, and an operator takes drives out and puts others in: the
# daemon's log says each of it, with drive, place and cause.
NO_LOOP=yes
new_drives 5 64
# A file in memory that can be made read-only while it is open: writes to it fail from then on.
python3 - "$DIR/sealed" "$DIR/seal" <<'PY' &
import fcntl, os, sys, time
F_ADD_SEALS, F_SEAL_WRITE = 1033, 8
file = os.memfd_create("purlin", os.MFD_ALLOW_SEALING)
os.ftruncate(file, 64 << 20)
os.symlink(f"/proc/{os.getpid()}/fd/{file}", sys.argv[1])
while not os.path.exists(sys.argv[2]):
    time.sleep(0.02)
fcntl.fcntl(file, F_ADD_SEALS, F_SEAL_WRITE)
os.remove(sys.argv[2])
time.sleep(600)
PY
HELPERS+=($!)
until [[ -e $DIR/sealed ]]; do sleep 0.02; done

start_daemon
p group create tank --level raid6 --drives "$(join "${DRIVES[@]:0:3}"),$DIR/sealed" --yes >/dev/null
p volume create tank/v --size 32MiB >/dev/null
p export create tank/v --nbd "unix:$NBD" >/dev/null
uri="nbd+unix:///tank/v?socket=$NBD"
head -c 33554432 /dev/urandom >"$DIR/want"
nbdcopy --flush "$DIR/want" "$uri"

# said "WORDS": waits until the log has a line with these, exactly, in it.
said() {
    local try
    for try in $(seq 200); do
        grep -qF -- "$1" "$DIR/daemon.log" && return 0
        sleep 0.05
    done
    fail "the log does not say (after try $try): $1"
}

# All of the data of a member: whatever is read there is damaged. Superblocks, map and log lie before it.
damaged=${DRIVES[1]}
head -c $((16 * 1048576)) /dev/urandom | dd of="$damaged" bs=1M seek=8 conv=notrunc status=none
nbdcopy "$uri" "$DIR/got"
cmp "$DIR/want" "$DIR/got" || fail "other bytes were read"
about="group=\"tank\" slot=1 drive=\"$damaged\""
said "bytes cannot be used as they are read $about offset="
said "flaw=not what was written there times=1"
said "bytes were computed from the other members and written back $about offset="

# The end of a file is cut off: reads there fail as those of a bad medium do.
cut=${DRIVES[2]}
truncate -s $((16 * 1048576)) "$cut"
nbdcopy "$uri" "$DIR/got"
cmp "$DIR/want" "$DIR/got" || fail "other bytes were read"
about="group=\"tank\" slot=2 drive=\"$cut\""
said "operation failed, and is tried again $about failure=read at byte "
said "bytes cannot be used as they are read $about offset="
said "flaw=media error at offset "
said "bytes were computed from the other members and written back $about offset="

# A drive that takes no writes.
touch "$DIR/seal"
while [[ -e $DIR/seal ]]; do sleep 0.02; done
nbdcopy --flush "$DIR/want" "$uri"
about="group=\"tank\" slot=3 drive=\"$DIR/sealed\""
said "operation failed, and is tried again $about failure=write at byte "
said "member failed: the group goes on without it $about cause=kept on failing: write at byte "
said ": the drive is read-only"

# What an operator asks for, and that it was an operator.
p drive replace tank 3 --with "${DRIVES[3]}" --wipe-foreign --yes >/dev/null
said "an operator replaces a member group=\"tank\" slot=3 drive=\"${DRIVES[3]}\""
wait_rebuilt tank
p drive fail tank 0 --yes >/dev/null
about="group=\"tank\" slot=0 drive=\"${DRIVES[0]}\""
said "an operator takes a member out $about"
said "member was taken out: the group goes on without it $about cause=told so by an operator"
p spare add tank "${DRIVES[4]}" --wipe-foreign --yes >/dev/null
said "an operator adds a spare group=\"tank\" drive=\"${DRIVES[4]}\""
wait_rebuilt tank
p spare add tank "${DRIVES[0]}" --wipe-foreign --yes >/dev/null
p spare remove tank "${DRIVES[0]}" --yes >/dev/null
said "an operator removes a spare group=\"tank\" drive=\"${DRIVES[0]}\""

# However often it happens, it is said once in ten seconds for each drive.
lines=$(grep -cF "bytes were computed from the other members and written back" "$DIR/daemon.log")
((lines < 20)) || fail "the log has $lines lines of blocks that were healed"
nbdcopy "$uri" "$DIR/got"
cmp "$DIR/want" "$DIR/got" || fail "other bytes at the end"
