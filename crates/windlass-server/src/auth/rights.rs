//! What a principal may do. Pure; decided on by `auth`.

use std::fmt;

use windlass_core::InvalidInput;

/// One thing that a principal may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Right {
    /// See jobs, without what they carry.
    Read,
    /// Submit jobs.
    Submit,
    /// Act on jobs: cancel, replay, pause.
    Operate,
    /// Make keys and webhooks, set quotas.
    Admin,
    /// See what jobs carry.
    Payload,
}

impl Right {
    /// All of them.
    pub const ALL: [Right; 5] = [Right::Read, Right::Submit, Right::Operate, Right::Admin, Right::Payload];

    /// The stable name.
    pub fn as_str(self) -> &'static str {
        match self {
            Right::Read => "read",
            Right::Submit => "submit",
            Right::Operate => "operate",
            Right::Admin => "admin",
            Right::Payload => "payload",
        }
    }

    /// From its name.
    pub fn parse(name: &str) -> Result<Right, InvalidInput> {
        let known = || Right::ALL.map(Right::as_str).join(", ");
        let unknown = || InvalidInput::new("rights", format!("`{}` is none of {}", name.escape_debug(), known()));
        Right::ALL.into_iter().find(|right| right.as_str() == name).ok_or_else(unknown)
    }
}

/// A set of rights.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Rights(u8);

impl Rights {
    /// Every right.
    pub fn all() -> Self {
        Right::ALL.into_iter().collect()
    }

    /// Reads names with commas or spaces between them.
    pub fn parse(text: &str) -> Result<Self, InvalidInput> {
        let names = text.split([',', ' ']).filter(|name| !name.is_empty());
        names.map(Right::parse).collect()
    }

    /// Whether `right` is in the set.
    pub fn has(self, right: Right) -> bool {
        self.0 & (1 << right as u8) != 0
    }

    /// The rights in it.
    pub fn iter(self) -> impl Iterator<Item = Right> {
        Right::ALL.into_iter().filter(move |right| self.has(*right))
    }
}

impl FromIterator<Right> for Rights {
    fn from_iter<T: IntoIterator<Item = Right>>(rights: T) -> Self {
        Rights(rights.into_iter().fold(0, |set, right| set | 1 << right as u8))
    }
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.iter().map(Right::as_str).collect();
        f.write_str(&names.join(","))
    }
}

impl fmt::Debug for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rights({self})")
    }
}
