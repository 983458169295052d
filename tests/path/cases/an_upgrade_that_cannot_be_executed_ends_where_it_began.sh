# A program that passes all checks, and cannot be executed all the same: the daemon executes its own program again, though something else
# lies under its name by now, or goes on in its process where not even that can be executed. Nobody is turned away, and nothing is lost.
cases=$PWD
cd "$DIR"
program=$(command -v purlind)
mkdir bin launch
cp "$program" bin/purlind
new_drives 3 64
# The daemon is started from a file of its own, which can be replaced. What is in PAD0 to PAD3 fills its environment.
cat >launch/purlind <<'END'
#!/usr/bin/env bash
ulimit -S -s 2048
export PAD0 PAD1 PAD2 PAD3
exec "$DIR/bin/purlind" "$@"
END
chmod 755 launch/purlind
export DIR
PATH=$DIR/launch:$PATH

# gone PATH: passes the checks there, and is gone when it is executed.
gone() {
    printf '#!/bin/sh\necho purlind 9.8.7\nrm "$0"\n' >"$1.tmp"
    chmod 755 "$1.tmp"
    mv "$1.tmp" "$1"
}
inode() { stat -L -c %i "$1"; }
environment() { tr '\0' '\n' <"/proc/$DAEMON/environ"; }

start_daemon
p group create tank --level raid5 --drives "$(join "${DRIVES[@]}")" --yes >/dev/null
p volume create tank/v --size 64MiB >/dev/null
p export create tank/v --nbd "unix:$NBD" >/dev/null
"$cases/comers.py" nbd "$NBD" tank/v 0 >came 2>said.nbd &
comer=$!
"$cases/comers.py" api "$SOCKET" >asked 2>said.api &
asker=$!
sleep 1
began=$(inode "/proc/$DAEMON/exe")

# Twice: what was executed again is in the same position.
for round in 1 2; do
    gone bin/purlind
    p upgrade 2>said && fail "round $round: the program was gone"
    grep -q "^purlin: $DIR/bin/purlind cannot be executed: No such file .*; purlind .* goes on, after nobody was served for [0-9]* ms$" said ||
        fail "unclear: $(cat said)"
    [[ $(json 'd["pid"]' status) == "$DAEMON" && $(inode "/proc/$DAEMON/exe") == "$began" ]] || fail "another process, or program"
    [[ $(<"/proc/$DAEMON/comm") == purlind ]] || fail "it is called $(<"/proc/$DAEMON/comm")"
    [[ $(environment) == *'PURLIN_UPGRADE={'*'bin/purlind cannot be executed'* ]] || fail "it was not executed again"
    state=$(curl -sS --unix-socket "$SOCKET" http://x/v1/upgrade)
    [[ $state == *'"state":"failed"'*'"to_version":"9.8.7"'* ]] || fail "the API says $state"
    sleep 0.5
done
# An upgrade without a name takes what lies where the daemon was started from, as ever.
cp "$program" bin/purlind
p upgrade >said || fail "no upgrade: $(cat said)"
[[ $(inode "/proc/$DAEMON/exe") == $(inode bin/purlind) ]] || fail "another program was taken"
for ended in "$comer" "$asker"; do
    kill -TERM "$ended" 2>/dev/null || true
    wait "$ended" || fail "a client: $(cat said.nbd said.api)"
done
read -r count _ <came
((count > 20)) || fail "a client came only $count times"
stop_daemon TERM

# An environment so full that no program fits which is also told of its sockets, neither the next one nor this one.
pad() { # pad BYTES: in four, since one may have 128 KiB
    printf -v PAD0 '%*s' $(($1 / 4)) ''
    PAD1=$PAD0 PAD2=$PAD0
    printf -v PAD3 '%*s' $(($1 - 3 * ($1 / 4))) ''
}
export PAD0 PAD1 PAD2 PAD3
least=0 most=$((512 * 1024))
while ((most - least > 1)); do
    pad $(((least + most) / 2))
    if purlind --state "$STATE" --socket "$SOCKET" --version >/dev/null 2>&1; then
        least=$(((least + most) / 2))
    else
        most=$(((least + most) / 2))
    fi
done
pad "$least"
start_daemon
unset PAD0 PAD1 PAD2 PAD3
p upgrade 2>said && fail "nothing more fits"
grep -q "^purlin: $DIR/bin/purlind cannot be executed: Argument list too long .*; purlind .* goes on, after nobody was served for [0-9]* ms$" said ||
    fail "unclear: $(cat said)"
[[ $(environment) != *PURLIN_UPGRADE* ]] || fail "it was executed again"
grep -q 'cannot be executed either: everything is started again in this process' daemon.log || fail "the log does not say so"
[[ $(json 'd["pid"]' status) == "$DAEMON" ]] || fail "another process"
nbdsh -u "nbd+unix:///tank/v?socket=$NBD" -c 'h.pwrite(b"x" * 4096, 0); h.flush(); assert h.pread(4096, 0) == b"x" * 4096'
stop_daemon TERM
