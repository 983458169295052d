#!/usr/bin/python3
"""Says which NVMe discovery services announce themselves by multicast DNS, as python3-zeroconf sees them.

    mdns_peer.py ADDRESS

ADDRESS is that of the network interface to listen at. It goes on until SIGTERM and prints a line for each service that comes, with the keys of its
TXT record in order, and for each that goes:

    + NAME ADDRESS[,ADDRESS...]:PORT KEY=VALUE...
    - NAME
"""

import signal
import sys
import threading

from zeroconf import ServiceBrowser, Zeroconf

TYPE = "_nvme-disc._tcp.local."


def say(line):
    print(line, flush=True)


class Peer:
    def add_service(self, zeroconf, kind, name):
        # As long as the test waits: a machine under load must not fail it.
        service = zeroconf.get_service_info(kind, name, timeout=30000)
        if service is None:
            say(f"! {name} says nothing of itself")
            return
        addresses = ",".join(sorted(service.parsed_addresses()))
        keys = sorted((key.decode(), value.decode()) for key, value in service.properties.items())
        text = " ".join(f"{key}={value}" for key, value in keys)
        say(f"+ {name.removesuffix('.' + TYPE)} {addresses}:{service.port} {text}")

    def remove_service(self, _zeroconf, _kind, name):
        say(f"- {name.removesuffix('.' + TYPE)}")

    def update_service(self, _zeroconf, _kind, _name):
        pass


stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
zeroconf = Zeroconf(interfaces=[sys.argv[1]])
browser = ServiceBrowser(zeroconf, TYPE, Peer())
say("listens")
stop.wait()
zeroconf.close()
