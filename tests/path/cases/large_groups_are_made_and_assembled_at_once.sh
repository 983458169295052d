# 16 TiB over sparse files: created and assembled in under 2 s each, within the memory that was promised.
files=()
for index in $(seq 10); do files+=("$DIR/big-$index"); done
start_daemon
began=$(milliseconds)
p group create big --level raid6 --drives "$(join "${files[@]}")" --create-files 2TiB --yes >/dev/null
made=$(($(milliseconds) - began))
p volume create big/v --size 15TiB >/dev/null
p group stop big
began=$(milliseconds)
p group assemble "${files[@]}" >/dev/null
assembled=$(($(milliseconds) - began))
resident=$(json 'd["resident_bytes"]' status --once)
echo "measured: created in $made ms, assembled in $assembled ms, resident $((resident >> 20)) MiB"
((made < 2000)) || fail "created in $made ms"
((assembled < 2000)) || fail "assembled in $assembled ms"
((resident < (150 + 16) << 20)) || fail "resident $resident bytes"
