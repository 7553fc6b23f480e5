//! How many sockets there are in the sandbox's network, as the kernel tells.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;

/// More than the kernel writes for its hundred-odd kinds of sockets.
const TABLE: usize = 16 << 10;
/// As much of the short table as says how many sockets there are.
const SUM: usize = 64;

/// The kernel's tables of sockets, kept open: reading one again is cheaper than opening it.
pub(crate) struct Sockets {
    /// The number of all sockets.
    sum: Option<File>,
    /// The number of those of each kind that are bound or connected; of some kinds, of all.
    kinds: Option<File>,
    text: Vec<u8>,
}

/// What the table of kinds says.
#[derive(Debug, Default, PartialEq, Eq)]
struct Kinds {
    all: u64,
    tcp: u64,
    datagrams: u64,
    netlink: u64,
}

impl Sockets {
    pub(crate) fn open() -> Self {
        Self {
            sum: File::open("/proc/net/sockstat").ok(),
            kinds: File::open("/proc/net/protocols").ok(),
            text: vec![0; TABLE],
        }
    }

    /// All sockets, of every family and in every state.
    pub(crate) fn all(&mut self) -> Option<u64> {
        let length = self.sum.as_ref()?.read_at(&mut self.text[..SUM], 0).ok()?;
        sum(std::str::from_utf8(&self.text[..length]).ok()?)
    }

    /// TCP sockets that listen, are connected, or were and are not gone.
    pub(crate) fn tcp(&mut self) -> Option<u64> {
        Some(self.kinds()?.tcp)
    }

    /// Netlink sockets, bound or not.
    pub(crate) fn netlink(&mut self) -> Option<u64> {
        Some(self.kinds()?.netlink)
    }

    /// TCP sockets in every state, and whatever else may yet become one.
    pub(crate) fn streams(&mut self) -> Option<u64> {
        let (all, kinds) = (self.all()?, self.kinds()?);
        Some(kinds.tcp + kinds.unknown(all))
    }

    /// UDP and ICMP sockets in every state, and whatever else may yet become one.
    pub(crate) fn datagrams(&mut self) -> Option<u64> {
        let (all, kinds) = (self.all()?, self.kinds()?);
        Some(kinds.datagrams + kinds.unknown(all))
    }

    fn kinds(&mut self) -> Option<Kinds> {
        let (file, mut length) = (self.kinds.as_ref()?, 0);
        // The kernel hands it out a page at a time.
        loop {
            match file.read_at(&mut self.text[length..], length as u64).ok()? {
                0 if length < self.text.len() => break,
                // There is more than we would read.
                0 => return None,
                more => length += more,
            }
        }
        kinds(std::str::from_utf8(&self.text[..length]).ok()?)
    }
}

impl Kinds {
    /// Those of `all` that are in no line of the table: internet sockets that are not bound yet, or not any more.
    fn unknown(&self, all: u64) -> u64 {
        all.saturating_sub(self.all)
    }
}

fn sum(text: &str) -> Option<u64> {
    text.lines().next()?.strip_prefix("sockets: used ")?.trim().parse().ok()
}

fn kinds(table: &str) -> Option<Kinds> {
    let mut kinds = Kinds::default();
    let mut netlink = false;
    for line in table.lines().skip(1) {
        let mut fields = line.split_whitespace();
        let name = fields.next()?;
        let count: u64 = fields.nth(1)?.parse().ok()?;
        kinds.all = kinds.all.saturating_add(count);
        match name {
            "TCP" | "TCPv6" => kinds.tcp += count,
            "UDP" | "UDPv6" | "UDP-Lite" | "UDPLITEv6" | "PING" | "PINGv6" | "RAW" | "RAWv6" => {
                kinds.datagrams += count;
            }
            "NETLINK" => {
                kinds.netlink = count;
                netlink = true;
            }
            _ => {}
        }
    }
    netlink.then_some(kinds)
}

/// How many sockets listen in this network namespace, counted no further than to this number.
pub(crate) fn listeners(most: u64) -> Option<u64> {
    let four =
        listening(BufReader::with_capacity(SHORTER_THAN_A_LINE, File::open("/proc/net/tcp").ok()?), most)?;
    match File::open("/proc/net/tcp6") {
        Ok(file) => Some(four + listening(BufReader::with_capacity(SHORTER_THAN_A_LINE, file), most)?),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Some(four),
        Err(_) => None,
    }
}

/// The kernel makes as many lines as fit into what it is asked for, and looking for the next one may cost it much.
const SHORTER_THAN_A_LINE: usize = 128;

/// Those that listen come first.
fn listening(table: impl BufRead, most: u64) -> Option<u64> {
    const LISTEN: &str = "0A";
    let mut count = 0;
    for line in table.lines().skip(1) {
        if count >= most || line.ok()?.split_whitespace().nth(3) != Some(LISTEN) {
            break;
        }
        count += 1;
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_counted_as_the_kernel_tells() {
        let table = "protocol  size sockets  memory press maxhdr  slab module     cl co\n\
                     PACKET    1472      0      -1   NI       0   no   kernel      n  n\n\
                     PINGv6    1208      1      -1   NI       0   yes  kernel      y  y\n\
                     UDPv6     1408      2       0   NI       0   yes  kernel      y  y\n\
                     TCPv6     2616      3       0   no     320   yes  kernel      y  y\n\
                     UNIX      1024     50      -1   NI       0   yes  kernel      n  n\n\
                     UDP       1280      5       0   NI       0   yes  kernel      y  y\n\
                     TCP       2424      4       0   no     320   yes  kernel      y  y\n\
                     NETLINK   1096     17      -1   NI       0   no   kernel      n  n\n";
        let found = kinds(table).unwrap();
        assert_eq!(found, Kinds { all: 82, tcp: 7, datagrams: 8, netlink: 17 });
        assert_eq!(found.unknown(90), 8);
        assert_eq!(found.unknown(80), 0);
        assert_eq!(kinds("protocol  size\n"), None);
        assert_eq!(kinds("protocol  size\nTCP  2424\n"), None);
        assert_eq!(sum("sockets: used 83\nTCP: inuse 1"), Some(83));
        assert_eq!(sum("sockets: used \n"), None);
        assert_eq!(sum(""), None);
    }

    /// Neither table tells all: together they do, and closed descriptors are gone from both.
    #[test]
    fn sockets_that_are_not_bound_yet_are_counted() {
        let mut sockets = Sockets::open();
        assert!(sockets.all().is_some() && sockets.tcp().is_some() && sockets.netlink().is_some());
        let most = 200;
        let made: Vec<_> = (0..most).map_while(|_| std::net::UdpSocket::bind("127.0.0.1:0").ok()).collect();
        assert!(sockets.datagrams().unwrap() >= made.len() as u64);
        let unbound: Vec<_> = (0..most)
            .map_while(|_| {
                use rustix::net::{AddressFamily, SocketType, socket};
                socket(AddressFamily::INET, SocketType::STREAM, None).ok()
            })
            .collect();
        assert!(unbound.len() > 100);
        assert!(sockets.streams().unwrap() >= unbound.len() as u64);
        assert!(sockets.datagrams().unwrap() >= (made.len() + unbound.len()) as u64);
    }

    #[test]
    fn those_that_listen_are_counted() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue\n\
                     0: 0100007F:B2E7 00000000:0000 0A 00000000:00000000 00:00000000\n\
                     1: 0100007F:B2E8 00000000:0000 0A 00000000:00000000 00:00000000\n\
                     2: 0100007F:B2E7 0100007F:8C4E 01 00000000:00000000 00:00000000\n\
                     3: 0100007F:B2E9 00000000:0000 0A 00000000:00000000 00:00000000\n";
        assert_eq!(listening(table.as_bytes(), 100), Some(2));
        assert_eq!(listening(table.as_bytes(), 1), Some(1));
        let before = listeners(1_000_000).unwrap();
        let _held = [(); 64].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
        assert!(listeners(1_000_000).unwrap() + 32 >= before + 64);
        assert_eq!(listeners(1).unwrap().min(1), 1);
    }
}
