//! Small values that must not travel with a copy of the database, such as the secret that signs a server's sessions: a
//! file of their own beside it, for its owner alone. Called by `lib` for the store's settings; set on the writer thread
//! only, so that of many who set a value one wins. Never in the database: whoever got a backup could sign sessions.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use windlass_core::store::{Error, Result};

use crate::ground::private::{beside, create_private, read_beside};

/// Where the values are.
pub(crate) enum Secrets {
    /// Beside the database at this path.
    File(PathBuf),
    /// Of a store that is gone when it is dropped.
    Memory(Mutex<BTreeMap<String, String>>),
}

impl Secrets {
    /// Those of the database at `path`.
    pub(crate) fn of(path: &Path) -> Secrets {
        match path == Path::new(":memory:") {
            true => Secrets::Memory(Mutex::default()),
            false => Secrets::File(path.to_owned()),
        }
    }

    /// A value.
    pub(crate) fn get(&self, name: &str) -> Result<Option<String>> {
        match self {
            Secrets::File(path) => Ok(load(path)?.remove(name)),
            Secrets::Memory(values) => Ok(values.lock().get(name).cloned()),
        }
    }

    /// Keeps a value unless there is one; returns the one that is kept.
    pub(crate) fn set_if_absent(&self, name: &str, value: &str) -> Result<String> {
        match self {
            Secrets::Memory(values) => {
                Ok(values.lock().entry(name.to_owned()).or_insert_with(|| value.to_owned()).clone())
            }
            Secrets::File(path) => {
                let mut values = load(path)?;
                if let Some(kept) = values.get(name) {
                    return Ok(kept.clone());
                }
                values.insert(name.to_owned(), value.to_owned());
                save(path, &values)?;
                Ok(value.to_owned())
            }
        }
    }
}

const ENDING: &str = ".secrets";

fn load(database: &Path) -> Result<BTreeMap<String, String>> {
    let path = beside(database, ENDING);
    let text = match read_beside(database, ENDING) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            return Err(Error::Refused(format!("cannot read {}: {error}", path.display())));
        }
        Err(error) => return Err(Error::Unavailable(format!("cannot read {}: {error}", path.display()))),
    };
    // What the parser says could quote a secret.
    serde_json::from_str(&text)
        .map_err(|_| Error::Internal(format!("{} is not a Windlass secrets file", path.display())))
}

/// Writes a new file and puts it in the place of the old one, so that a crash leaves one of the two whole.
fn save(database: &Path, values: &BTreeMap<String, String>) -> Result<()> {
    let path = &beside(database, ENDING);
    let fresh = beside(path, ".new");
    let write = || {
        let mut file = create_private(&fresh)?;
        file.write_all(&serde_json::to_vec(values)?)?;
        file.sync_all()?;
        std::fs::rename(&fresh, path)
    };
    write().map_err(|error| Error::Unavailable(format!("cannot write {}: {error}", path.display())))
}
