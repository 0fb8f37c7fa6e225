//! One sealed text: XChaCha20-Poly1305 under a data key, bound to the tenant, the job, the kind of text and the version
//! of the key. Used by `vault` and, for wrapped keys, by `provider`. Never decides whether a text is sealed: the job's
//! spec says so.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use hmac::{Hmac, Mac};
use rand::Rng;
use sha2::Sha256;
use zeroize::Zeroizing;

use super::{DataKey, KEY_BYTES, KeyOf};
use crate::model::id::JobId;
use crate::seal::{KeyError, Kind};

/// What a store keeps in place of a sealed text: `wls1:<version>:<nonce and ciphertext>`, which is also the inside of a
/// JSON string, because it has no character that JSON would escape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Which version of the tenant's data key.
    pub version: u32,
    /// 24 bytes of nonce, then the ciphertext with its tag of 16 bytes.
    bytes: Vec<u8>,
}

const PREFIX: &str = "wls1:";
const NONCE_BYTES: usize = 24;
const TAG_BYTES: usize = 16;

impl Envelope {
    /// Reads one, plain or as a JSON string. Exactly what [`Envelope::to_string`] writes, nothing else.
    pub fn parse(text: &str) -> Option<Envelope> {
        let text = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
        let (version, bytes) = text.strip_prefix(PREFIX)?.split_once(':')?;
        // `parse` would also take a sign and leading zeros: two spellings of one envelope.
        if version.starts_with('0') || !version.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let version: u32 = version.parse().ok()?;
        let bytes = URL_SAFE_NO_PAD.decode(bytes).ok()?;
        (bytes.len() >= NONCE_BYTES + TAG_BYTES).then_some(Envelope { version, bytes })
    }
}

impl fmt::Display for Envelope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}:{}", self.version, URL_SAFE_NO_PAD.encode(&self.bytes))
    }
}

/// A data key in use: two keys derived from it, so that no key serves two purposes.
pub(crate) struct Key {
    of: KeyOf,
    cipher: XChaCha20Poly1305,
    content: Zeroizing<[u8; KEY_BYTES]>,
}

impl Key {
    pub(crate) fn new(of: KeyOf, data_key: &DataKey) -> Key {
        let seal = derive(data_key, b"windlass seal 1");
        Key { of, cipher: cipher(&seal), content: derive(data_key, b"windlass content key 1") }
    }

    pub(crate) fn seal(&self, job: JobId, kind: Kind, text: &str) -> Envelope {
        Envelope { version: self.of.version, bytes: encrypt(&self.cipher, &self.bound_to(job, kind), text.as_bytes()) }
    }

    /// Fails where the text was changed, or sealed for another tenant, job, kind of text or key.
    pub(crate) fn open(&self, job: JobId, kind: Kind, envelope: &Envelope) -> Result<String, KeyError> {
        let bytes = decrypt(&self.cipher, &self.bound_to(job, kind), &envelope.bytes)?;
        String::from_utf8(bytes).map_err(|_| KeyError::Damaged)
    }

    /// A key that tells equal contents from different ones, and nothing else.
    pub(crate) fn content_key(&self, content: &str) -> String {
        URL_SAFE_NO_PAD.encode(mac(&self.content, content.as_bytes()))
    }

    /// What a sealed text belongs to. Every part has a fixed length, so that no two differ only in where a part ends.
    fn bound_to(&self, job: JobId, kind: Kind) -> [u8; 41] {
        let mut bound = [0; 41];
        bound[..12].copy_from_slice(b"windlass job");
        bound[12..28].copy_from_slice(self.of.tenant.0.as_bytes());
        bound[28..36].copy_from_slice(&job.as_i64().to_be_bytes());
        bound[36] = kind as u8;
        bound[37..].copy_from_slice(&self.of.version.to_be_bytes());
        bound
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({}, [redacted])", self.of)
    }
}

pub(super) fn cipher(key: &[u8; KEY_BYTES]) -> XChaCha20Poly1305 {
    XChaCha20Poly1305::new(key.into())
}

/// Nonce and ciphertext. The nonce is random: 192 bits are enough for that.
pub(super) fn encrypt(cipher: &XChaCha20Poly1305, bound_to: &[u8], plain: &[u8]) -> Vec<u8> {
    let mut nonce = [0; NONCE_BYTES];
    rand::rng().fill_bytes(&mut nonce);
    let sealed = cipher.encrypt(&XNonce::from(nonce), Payload { msg: plain, aad: bound_to });
    let sealed = sealed.expect("texts are far shorter than the cipher's limit of 256 GB");
    let mut bytes = Vec::with_capacity(NONCE_BYTES + sealed.len());
    bytes.extend_from_slice(&nonce);
    bytes.extend_from_slice(&sealed);
    bytes
}

pub(super) fn decrypt(cipher: &XChaCha20Poly1305, bound_to: &[u8], bytes: &[u8]) -> Result<Vec<u8>, KeyError> {
    let (nonce, sealed) = bytes.split_at_checked(NONCE_BYTES).ok_or(KeyError::Damaged)?;
    let nonce = XNonce::try_from(nonce).map_err(|_| KeyError::Damaged)?;
    cipher.decrypt(&nonce, Payload { msg: sealed, aad: bound_to }).map_err(|_| KeyError::Damaged)
}

fn derive(data_key: &DataKey, purpose: &[u8]) -> Zeroizing<[u8; KEY_BYTES]> {
    Zeroizing::new(mac(data_key.expose(), purpose))
}

fn mac(key: &[u8; KEY_BYTES], message: &[u8]) -> [u8; KEY_BYTES] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(message);
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tenant::TenantId;
    use proptest::prelude::*;
    use uuid::Uuid;

    fn key(tenant: u128, version: u32, secret: u8) -> Key {
        let of = KeyOf { tenant: TenantId(Uuid::from_u128(tenant)), version };
        Key::new(of, &DataKey::from_slice(&[secret; 32]).expect("32 bytes"))
    }

    const JOB: JobId = JobId::from_i64(77);

    /// SEC-2: a text opens only for the tenant, job, kind and key version it was sealed for, even under the same secret.
    #[test]
    fn a_text_opens_only_where_it_belongs() {
        let sealed = key(1, 1, 9).seal(JOB, Kind::Input, "secret");
        assert_eq!(key(1, 1, 9).open(JOB, Kind::Input, &sealed), Ok("secret".to_owned()));
        let elsewhere = [
            key(2, 1, 9).open(JOB, Kind::Input, &sealed),
            key(1, 2, 9).open(JOB, Kind::Input, &sealed),
            key(1, 1, 8).open(JOB, Kind::Input, &sealed),
            key(1, 1, 9).open(JobId::from_i64(78), Kind::Input, &sealed),
            key(1, 1, 9).open(JOB, Kind::Output, &sealed),
        ];
        assert!(elsewhere.iter().all(|opened| *opened == Err(KeyError::Damaged)));
    }

    #[test]
    fn the_same_text_never_looks_the_same() {
        let key = key(1, 1, 9);
        assert_ne!(key.seal(JOB, Kind::Input, "a"), key.seal(JOB, Kind::Input, "a"));
        assert_eq!(key.content_key("a"), key.content_key("a"));
        assert_ne!(key.content_key("a"), self::key(2, 1, 8).content_key("a"));
    }

    #[test]
    fn one_envelope_has_one_spelling() {
        let sealed = key(1, 12, 9).seal(JOB, Kind::Input, "a").to_string();
        let body = sealed.strip_prefix("wls1:12:").expect("the version is plain");
        for other in
            [format!("wls1:+12:{body}"), format!("wls1:012:{body}"), format!("wls1:12:{body}="), body.to_owned()]
        {
            assert_eq!(Envelope::parse(&other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn any_text_comes_back_and_any_changed_byte_is_noticed(text in ".*", at in any::<prop::sample::Index>(), flip in 1u8..) {
            let key = key(1, 3, 9);
            let sealed = key.seal(JOB, Kind::Output, &text);
            let read = Envelope::parse(&sealed.to_string()).expect("reads back");
            prop_assert_eq!(&read, &sealed);
            prop_assert_eq!(Envelope::parse(&format!("\"{sealed}\"")), Some(read.clone()));
            prop_assert_eq!(key.open(JOB, Kind::Output, &read), Ok(text));
            let mut changed = read;
            let at = at.index(changed.bytes.len());
            changed.bytes[at] ^= flip;
            prop_assert_eq!(key.open(JOB, Kind::Output, &changed), Err(KeyError::Damaged));
        }
    }
}
