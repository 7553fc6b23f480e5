//! Certificates by which TLS is opened: an authority for each sandbox, and what it vouches for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use belljar_core::{Authority, SandboxId};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::server::NoServerSessionStorage;

use crate::policy::Destination;

/// Hosts whose certificates are kept, of one sandbox.
const MOST_KEPT: usize = 256;

/// Makes an authority for a sandbox.
pub fn create(sandbox: &SandboxId) -> Result<Authority, rcgen::Error> {
    let key = KeyPair::generate()?;
    let certificate = parameters(sandbox).self_signed(&key)?;
    Ok(Authority { certificate: certificate.pem(), key: key.serialize_pem() })
}

/// What is said of an authority. It is the same at every time, so that whoever has the key can speak for it.
fn parameters(sandbox: &SandboxId) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name.push(DnType::OrganizationName, "Belljar");
    parameters.distinguished_name.push(DnType::CommonName, format!("Belljar sandbox {sandbox}"));
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    always(&mut parameters);
    parameters
}

/// Whoever believes it is gone with the sandbox; and clocks, inside and outside, may be wrong.
fn always(parameters: &mut CertificateParams) {
    (parameters.not_before, parameters.not_after) = (date_time_ymd(2000, 1, 1), date_time_ymd(2099, 1, 1));
}

/// Speaks for an authority: has certificates for whichever hosts are asked for.
pub(crate) struct Opener {
    issuer: Issuer<'static, KeyPair>,
    /// One key for all of them.
    key: KeyPair,
    kept: Mutex<HashMap<Destination, Arc<ServerConfig>>>,
}

impl std::fmt::Debug for Opener {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Opener").finish_non_exhaustive()
    }
}

impl Opener {
    pub(crate) fn new(sandbox: &SandboxId, authority: &Authority) -> Result<Self, rcgen::Error> {
        let issuer = Issuer::new(parameters(sandbox), KeyPair::from_pem(&authority.key)?);
        Ok(Self { issuer, key: KeyPair::generate()?, kept: Mutex::default() })
    }

    /// How to speak TLS as this host.
    pub(crate) fn config(&self, host: &Destination) -> Result<Arc<ServerConfig>, Error> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(config) = kept.get(host) {
            return Ok(config.clone());
        }
        let config = Arc::new(self.make(host)?);
        if kept.len() == MOST_KEPT {
            kept.clear();
        }
        kept.insert(host.clone(), config.clone());
        Ok(config)
    }

    fn make(&self, host: &Destination) -> Result<ServerConfig, Error> {
        let name = match host {
            Destination::Name(name) => name.to_string(),
            Destination::Address(address) => address.to_string(),
        };
        let mut parameters = CertificateParams::new(vec![name])?;
        parameters.distinguished_name = rcgen::DistinguishedName::new();
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        always(&mut parameters);
        let leaf: CertificateDer<'static> = parameters.signed_by(&self.key, &self.issuer)?.into();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(self.key.serialize_der()));
        let mut config = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![leaf], key)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        // Nothing is remembered of clients.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }
}

/// Why there is no certificate for a host.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot make a certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    #[error("cannot use a certificate: {0}")]
    Tls(#[from] tokio_rustls::rustls::Error),
}

#[cfg(test)]
mod tests {
    use tokio_rustls::rustls::pki_types::ServerName;
    use tokio_rustls::rustls::pki_types::pem::PemObject;
    use tokio_rustls::rustls::{ClientConfig, RootCertStore};
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use super::*;

    async fn greet(opener: &Opener, believed: &Authority, host: &str, asked: &str) -> std::io::Result<()> {
        let host = match host.parse() {
            Ok(address) => Destination::Address(address),
            Err(_) => Destination::Name(host.parse().unwrap()),
        };
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(believed.certificate.as_bytes()).unwrap()).unwrap();
        let client = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let (near, far) = tokio::io::duplex(1 << 16);
        let accept = TlsAcceptor::from(opener.config(&host).unwrap()).accept(far);
        let name = ServerName::try_from(asked.to_owned()).unwrap();
        let connector = TlsConnector::from(Arc::new(client));
        let connect = connector.connect(name, near);
        let (connected, _) = tokio::join!(connect, accept);
        connected.map(drop)
    }

    #[tokio::test]
    async fn whoever_believes_the_authority_believes_its_certificates_for_that_host_alone() {
        let sandbox = SandboxId::from_random([1; 16]);
        let (own, other) = (create(&sandbox).unwrap(), create(&sandbox).unwrap());
        // Made again from what is kept.
        let kept: Authority = serde_json::from_str(&serde_json::to_string(&own).unwrap()).unwrap();
        let opener = Opener::new(&sandbox, &kept).unwrap();
        for host in ["a.example", "192.0.2.7", "2001:db8::7"] {
            greet(&opener, &own, host, host).await.unwrap();
        }
        greet(&opener, &own, "a.example", "b.example").await.unwrap_err();
        greet(&opener, &other, "a.example", "a.example").await.unwrap_err();
    }

    #[test]
    fn certificates_are_kept_up_to_a_bound() {
        let sandbox = SandboxId::from_random([2; 16]);
        let opener = Opener::new(&sandbox, &create(&sandbox).unwrap()).unwrap();
        let host = |number: usize| Destination::Name(format!("h{number}.example").parse().unwrap());
        let first = opener.config(&host(0)).unwrap();
        assert!(Arc::ptr_eq(&first, &opener.config(&host(0)).unwrap()));
        for number in 0..2 * MOST_KEPT {
            opener.config(&host(number)).unwrap();
            assert!(opener.kept.lock().unwrap().len() <= MOST_KEPT);
        }
    }

    #[test]
    fn a_key_is_not_said() {
        let authority = create(&SandboxId::from_random([3; 16])).unwrap();
        assert_eq!(format!("{authority:?}"), "Authority { .. }");
    }
}
