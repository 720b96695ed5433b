"""Finds ports of the loopback interface for servers that a test starts."""
import random
import socket

# Below the ports that the kernel gives to outgoing connections, which may take a port again before the server has it.
FIRST, END = 20000, 32000


def free_ports(count):
    """Returns the first of as many ports in a row that nobody listens on now."""
    while True:
        first = random.SystemRandom().randrange(FIRST, END - count)
        sockets = [socket.socket() for _ in range(count)]
        try:
            for i, one in enumerate(sockets):
                one.bind(("127.0.0.1", first + i))
            return first
        except OSError:
            continue
        finally:
            for one in sockets:
                one.close()


def free_port():
    return free_ports(1)
