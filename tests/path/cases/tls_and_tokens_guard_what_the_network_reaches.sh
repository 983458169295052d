# NBD over TCP with TLS wants the right client certificate; the API over TCP wants TLS and a token.
cd "$DIR"
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test-ca -keyout ca-key.pem -out ca-cert.pem 2>/dev/null
issue() { # issue NAME SUBJECT
    openssl req -newkey rsa:2048 -nodes -subj "/CN=$2" -keyout "$1-key.pem" -out "$1.csr" 2>/dev/null
    openssl x509 -req -in "$1.csr" -CA ca-cert.pem -CAkey ca-key.pem -CAcreateserial -days 2 \
        -extfile <(echo "subjectAltName=DNS:localhost,IP:127.0.0.1") -out "$1-cert.pem" 2>/dev/null
}
issue server localhost
issue client client
token=$(openssl rand -hex 32)
(umask 077 && echo "$token" >tokens)
port=$(free_port) nbd_port=$(free_port)
start_daemon --http "127.0.0.1:$port" --http-tls-cert "$DIR/server-cert.pem" --http-tls-key "$DIR/server-key.pem" \
    --http-token-file "$DIR/tokens"
p group create m --level raid1 --drives mem:x:32MiB,mem:y:32MiB --yes >/dev/null
p volume create m/v --size 16MiB >/dev/null
p export create m/v --nbd "127.0.0.1:$nbd_port" --tls-cert "$DIR/server-cert.pem" --tls-key "$DIR/server-key.pem" \
    --tls-ca "$DIR/ca-cert.pem" >/dev/null
mkdir -p pki
cp ca-cert.pem client-cert.pem client-key.pem pki/
[[ $(nbdinfo --size "nbds://localhost:$nbd_port/m/v?tls-certificates=$DIR/pki") == 16777216 ]] || fail "TLS does not work"
nbdinfo --size "nbd://localhost:$nbd_port/m/v" 2>/dev/null && fail "served in the clear"
rm pki/client-cert.pem pki/client-key.pem
nbdinfo --size "nbds://localhost:$nbd_port/m/v?tls-certificates=$DIR/pki" 2>/dev/null && fail "served without a client certificate"

ask() { curl -sS -o answer -w '%{http_code}' --cacert ca-cert.pem "$@" "https://localhost:$port/v1/groups"; }
[[ $(ask -H "Authorization: Bearer $token") == 200 ]] || fail "the right token is refused"
[[ $(ask -H "Authorization: Bearer ${token%?}x") == 401 ]] || fail "a wrong token is taken"
[[ $(ask) == 401 ]] || fail "no token is needed"
[[ $(curl -sS --unix-socket "$SOCKET" -o metrics -w '%{http_code}' http://localhost/metrics) == 200 ]] || fail "no metrics"
grep -q '^purlin_.*group="m"' metrics || fail "the metrics do not know the group"
curl -sS --unix-socket "$SOCKET" http://localhost/openapi.json | python3 -c 'import json,sys; assert "/v1/groups" in json.load(sys.stdin)["paths"]'
