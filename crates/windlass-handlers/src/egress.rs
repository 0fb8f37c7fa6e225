//! Requests that a process makes for others: which addresses it may reach, and a client that reaches no other
//! (reliability.md 8.4). Used by the handlers here, and by the server for webhooks and JWKS documents. Deciding is pure; the
//! client resolves a name once, checks every address, and connects to one that was checked.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Client, ClientBuilder, Url};

/// Which addresses may be connected to. By default public ones, over https, at the usual port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Egress {
    /// Also allows internal addresses: loopback, private networks, link-local. For tests and closed networks.
    pub allow_private: bool,
    /// Also allows plain http.
    pub allow_http: bool,
    /// Also allows ports other than the scheme's default.
    pub allow_any_port: bool,
    /// If not empty, allows only these hosts and their subdomains.
    pub hosts: Vec<String>,
}

/// Why an address is not allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Blocked {
    /// It is not a usable address.
    #[error("`{0}` is not a usable address")]
    NotAnAddress(String),
    /// The scheme is not allowed.
    #[error("the scheme `{0}` is not allowed")]
    Scheme(String),
    /// The address contains a user name or password.
    #[error("the address contains a user name")]
    UserInfo,
    /// The port is not the scheme's default.
    #[error("port {0} is not allowed")]
    Port(u16),
    /// The host is not on the list.
    #[error("the host `{0}` is not allowed")]
    Host(String),
    /// The host is, or resolves to, an internal address.
    #[error("{0} is not a public address")]
    Private(IpAddr),
}

impl Egress {
    /// Also allows this machine and its networks, any port and plain http.
    pub fn anywhere() -> Self {
        Egress { allow_private: true, allow_http: true, allow_any_port: true, hosts: Vec::new() }
    }

    /// Parses an address and fails if it is not allowed. Names are checked again when they are resolved.
    pub fn check(&self, address: &str) -> Result<Url, Blocked> {
        let url = Url::parse(address).map_err(|_| Blocked::NotAnAddress(address.to_owned()))?;
        match url.scheme() {
            "https" => {}
            "http" if self.allow_http => {}
            scheme => return Err(Blocked::Scheme(scheme.to_owned())),
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(Blocked::UserInfo);
        }
        // `port` is empty where it is the scheme's own.
        if let Some(port) = url.port().filter(|_| !self.allow_any_port) {
            return Err(Blocked::Port(port));
        }
        let host = url.host_str().filter(|host| !host.is_empty());
        let host = host.ok_or_else(|| Blocked::NotAnAddress(address.to_owned()))?;
        let name = host.trim_end_matches('.').to_ascii_lowercase();
        let within = |allowed: &String| name == *allowed || name.ends_with(&format!(".{allowed}"));
        if !self.hosts.is_empty() && !self.hosts.iter().any(within) {
            return Err(Blocked::Host(name));
        }
        // The parser has made one spelling of all there are of an address: 0x7f.1, 127.1, 2130706433.
        if let Ok(ip) = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
            self.check_ip(ip)?;
        }
        Ok(url)
    }

    fn check_ip(&self, ip: IpAddr) -> Result<(), Blocked> {
        match self.allow_private || is_public(ip) {
            true => Ok(()),
            false => Err(Blocked::Private(ip)),
        }
    }

    /// All addresses of a name, if every one of them may be reached: one that may not means that the name is not to be
    /// trusted with the others either.
    fn check_all(&self, addresses: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, Blocked> {
        addresses.iter().try_for_each(|address| self.check_ip(address.ip()))?;
        Ok(addresses)
    }

    /// A client that reaches only what is allowed: no redirects, no proxy of the environment, no old connection to an
    /// address that was checked long ago.
    pub fn client(&self, total: Duration) -> Result<Client, reqwest::Error> {
        self.client_builder().timeout(total).build()
    }

    /// The same, for a caller that has more to set. Whoever sets redirects checks each of them.
    pub fn client_builder(&self) -> ClientBuilder {
        Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .dns_resolver(Arc::new(Resolver(self.clone())))
            .connect_timeout(CONNECT)
            .pool_idle_timeout(IDLE)
            .user_agent(concat!("windlass/", env!("CARGO_PKG_VERSION")))
    }
}

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(5);

/// How long a connection is kept for the next request: a name that moves is followed soon.
const IDLE: Duration = Duration::from_secs(10);

impl Blocked {
    /// The refusal among the causes of a failed request: no accident, and trying again does not help.
    pub fn among(error: &reqwest::Error) -> Option<&Blocked> {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(source) = cause {
            if let Some(blocked) = source.downcast_ref::<Blocked>() {
                return Some(blocked);
            }
            cause = source.source();
        }
        None
    }
}

struct Resolver(Egress);

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let egress = self.0.clone();
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let addresses = egress.check_all(found)?;
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

/// Whether an address belongs to the internet, and not to a machine, a network or a tunnel into one.
fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => is_public_v6(ip),
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    let inside = match a {
        0 | 10 | 127 => true,
        // Carrier-grade NAT.
        100 => (64..128).contains(&b),
        // Link-local: where clouds serve their secrets.
        169 => b == 254,
        172 => (16..32).contains(&b),
        // Protocol assignments, documentation, relays of 6to4, private.
        192 => (b == 0 && (c == 0 || c == 2)) || (b == 88 && c == 99) || b == 168,
        // Benchmarks, documentation.
        198 => b == 18 || b == 19 || (b == 51 && c == 100),
        203 => b == 0 && c == 113,
        // Multicast, reserved, broadcast.
        224.. => true,
        _ => false,
    };
    !inside
}

fn is_public_v6(ip: Ipv6Addr) -> bool {
    let [a, b, c, d, e, f, g, h] = ip.segments();
    let embedded = Ipv4Addr::from((u32::from(g) << 16) | u32::from(h));
    match (a, b) {
        // Addresses of version 4 in disguise: mapped, and NAT64.
        (0, 0) if (c, d, e, f) == (0, 0, 0, 0xffff) => is_public_v4(embedded),
        (0x64, 0xff9b) if (c, d, e, f) == (0, 0, 0, 0) => is_public_v4(embedded),
        // Protocol assignments with Teredo, documentation, 6to4, documentation again.
        (0x2001, 0..=0x1ff) | (0x2001, 0xdb8) | (0x2002, _) | (0x3fff, 0..=0xfff) => false,
        // What is left of the internet is in 2000::/3; all else is local, multicast or not given out.
        (0x2000..=0x3fff, _) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S10: every spelling of an address inside is refused, whatever hides it.
    #[test]
    fn no_spelling_of_an_inner_address_passes() {
        let egress = Egress { allow_http: true, ..Egress::default() };
        let inside = [
            "127.0.0.1",
            "127.1",
            "127.0.1",
            "127.255.255.254",
            "0x7f000001",
            "0x7f.1",
            "0x7F.0x0.0x0.0x1",
            "017700000001",
            "0177.0.0.1",
            "0177.1",
            "2130706433",
            "127.0.0.1.",
            "127。0。0。1",
            "１２７.0.0.1",
            "%31%32%37.0.0.1",
            "0",
            "0.0.0.0",
            "0x0",
            "00000000",
            "10.0.0.1",
            "10.255.255.255",
            "0xa.1",
            "012.1",
            "167772161",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.0.1",
            "0xc0a80001",
            "3232235521",
            "100.64.0.1",
            "100.127.255.255",
            "169.254.169.254",
            "0xa9fea9fe",
            "2852039166",
            "0251.0376.0251.0376",
            "169.254.43518",
            "192.0.0.1",
            "192.0.0.170",
            "192.0.2.1",
            "192.88.99.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.7",
            "203.0.113.9",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "[::]",
            "[::1]",
            "[0:0:0:0:0:0:0:1]",
            "[::ffff:127.0.0.1]",
            "[::ffff:7f00:1]",
            "[::ffff:a9fe:a9fe]",
            "[::127.0.0.1]",
            "[::7f00:1]",
            "[64:ff9b::127.0.0.1]",
            "[64:ff9b::a9fe:a9fe]",
            "[64:ff9b:1::1]",
            "[2002:7f00:1::]",
            "[2002:a9fe:a9fe::1]",
            "[2001::1]",
            "[2001:0:7f00:1::]",
            "[2001:db8::1]",
            "[100::1]",
            "[fc00::1]",
            "[fd12:3456::1]",
            "[fe80::1]",
            "[febf::1]",
            "[fec0::1]",
            "[ff02::1]",
            "[3fff::1]",
            "[::ffff:0:127.0.0.1]",
            "[5f00::1]",
            "[4000::1]",
        ];
        assert!(inside.len() >= 60);
        for host in inside {
            let checked = egress.check(&format!("http://{host}/hook"));
            assert!(matches!(checked, Err(Blocked::Private(_))), "{host} gave {checked:?}");
        }
    }

    #[test]
    fn public_addresses_and_names_pass() {
        let egress = Egress::default();
        let outside = [
            "https://example.com/hook",
            "https://example.com:443/",
            "https://8.8.8.8/",
            "https://1.1.1.1/x?y#z",
            "https://[2606:4700::1111]/",
            "https://172.15.0.1/",
            "https://172.32.0.1/",
            "https://100.63.0.1/",
            "https://100.128.0.1/",
            "https://[::ffff:8.8.8.8]/",
            "https://[64:ff9b::8.8.8.8]/",
            "https://192.0.1.1/",
            "https://[2001:4860:4860::8888]/",
            "https://223.255.255.255/",
        ];
        for address in outside {
            assert!(egress.check(address).is_ok(), "{address}");
        }
    }

    #[test]
    fn only_the_allowed_schemes_ports_and_hosts_pass() {
        let egress = Egress::default();
        let refused = |address: &str| egress.check(address).expect_err(address);
        assert_eq!(refused("http://example.com/"), Blocked::Scheme("http".into()));
        for scheme in ["file:///etc/passwd", "ftp://example.com/", "gopher://example.com/", "javascript:alert(1)"] {
            assert!(matches!(refused(scheme), Blocked::Scheme(_)), "{scheme}");
        }
        assert_eq!(refused("https://user@example.com/"), Blocked::UserInfo);
        assert_eq!(refused("https://user:pw@example.com/"), Blocked::UserInfo);
        assert_eq!(refused("https://example.com:8443/"), Blocked::Port(8443));
        assert_eq!(refused("https://example.com:22/"), Blocked::Port(22));
        for bad in ["", "example.com", "https://", "https://exa mple.com/", "https://[::1"] {
            assert!(matches!(egress.check(bad), Err(Blocked::NotAnAddress(_))), "{bad}");
        }
        let only = Egress { hosts: vec!["example.com".into()], ..Egress::default() };
        assert!(only.check("https://hooks.example.com/").is_ok() && only.check("https://EXAMPLE.com./").is_ok());
        for foreign in ["https://example.org/", "https://badexample.com/", "https://example.com.evil.org/"] {
            assert!(matches!(only.check(foreign), Err(Blocked::Host(_))), "{foreign}");
        }
    }

    /// S10: a name that resolves to one address inside is refused with all its others, so that no second look-up can
    /// bring another answer.
    #[test]
    fn a_name_with_one_inner_address_is_refused_as_a_whole() {
        let outer = SocketAddr::from(([8, 8, 8, 8], 0));
        let inner = SocketAddr::from(([169, 254, 169, 254], 0));
        let egress = Egress::default();
        assert_eq!(egress.check_all(vec![outer]), Ok(vec![outer]));
        assert_eq!(egress.check_all(vec![outer, inner]), Err(Blocked::Private(inner.ip())));
        assert_eq!(Egress::anywhere().check_all(vec![outer, inner]), Ok(vec![outer, inner]));
    }
}
