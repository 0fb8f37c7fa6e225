//! Which place a command works on and whose jobs: flags first, then the environment, then the profile, then the default.
//! Called by `main` once, before anything is opened. Decides; reads nothing but what it is given.

use std::path::PathBuf;

use windlass::TenantId;

use crate::args::Global;
use crate::error::{CliError, Result};
use crate::profile::Profile;
use crate::secret::Secret;

/// Fills in what the command line left open. A profile that the command line names counts as the command line itself: who
/// says `--profile staging` does not mean the database of some variable.
pub(crate) fn complete(mut global: Global, env: &dyn Fn(&str) -> Option<String>, chosen: &Profile) -> Result<Global> {
    let env = Layer::from_env(env)?;
    let profile = Layer::from_profile(chosen)?;
    let layers = if global.profile.is_some() { [profile, env] } else { [env, profile] };
    for layer in layers {
        if global.db.is_none() && global.url.is_none() {
            layer.check_one_place()?;
            (global.db, global.url) = (layer.db, layer.url);
        }
        if global.tenant.is_none() && !global.all_tenants {
            global.tenant = layer.tenant;
        }
        global.api_key = global.api_key.take().or(layer.api_key);
        global.key_file = global.key_file.take().or(layer.key_file);
    }
    Ok(global)
}

/// What one source says.
#[derive(Debug, Default)]
struct Layer {
    db: Option<String>,
    url: Option<String>,
    tenant: Option<TenantId>,
    api_key: Option<Secret>,
    key_file: Option<PathBuf>,
}

impl Layer {
    fn from_env(env: &dyn Fn(&str) -> Option<String>) -> Result<Layer> {
        let set = |name: &str| env(name).filter(|value| !value.is_empty());
        Ok(Layer {
            db: set("WINDLASS_DB"),
            url: set("WINDLASS_URL"),
            tenant: set("WINDLASS_TENANT").map(|text| TenantId::parse(&text)).transpose()?,
            api_key: set("WINDLASS_API_KEY").map(|text| Secret::new(text.trim().to_owned())),
            key_file: set("WINDLASS_KEY_FILE").map(PathBuf::from),
        })
    }

    /// Refuses two places: which one is meant is not guessed. Asked only of a source whose place is used.
    fn check_one_place(&self) -> Result {
        if self.db.is_some() && self.url.is_some() {
            let message = "WINDLASS_URL and WINDLASS_DB are both set; unset one, or use --url or --db";
            return Err(CliError::Usage(message.to_owned()));
        }
        Ok(())
    }

    fn from_profile(profile: &Profile) -> Result<Layer> {
        Ok(Layer {
            db: profile.db.clone(),
            url: profile.url.clone(),
            tenant: profile.tenant.as_deref().map(TenantId::parse).transpose()?,
            api_key: profile.api_key.clone(),
            key_file: profile.key_file.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    /// What a command line, an environment and a profile come to.
    fn check(args: &[&str], env: &[(&str, &str)], profile: Profile) -> Result<Global> {
        let cli = crate::args::Cli::try_parse_from([&["windlass"], args, &["stats"]].concat()).expect("it parses");
        let env = |name: &str| env.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        complete(cli.global, &env, &profile)
    }

    fn profile() -> Profile {
        Profile {
            url: Some("https://profile".to_owned()),
            api_key: Some(Secret::new("of-profile".to_owned())),
            tenant: Some("0190b3a2-7c1e-7000-8000-000000000001".to_owned()),
            ..Profile::default()
        }
    }

    #[test]
    fn a_flag_wins_over_a_variable_and_that_over_a_profile() {
        let env = [("WINDLASS_DB", "sqlite:env.db")];
        let found = |args: &[&str], env: &[(&str, &str)]| {
            let global = check(args, env, profile()).expect("good");
            global.db.or(global.url).expect("a place")
        };
        assert_eq!(found(&["--db", "sqlite:flag.db"], &env), "sqlite:flag.db");
        assert_eq!(found(&["--url", "https://flag"], &env), "https://flag");
        assert_eq!(found(&[], &env), "sqlite:env.db");
        assert_eq!(found(&[], &[]), "https://profile");
        assert_eq!(found(&["--profile", "prod"], &env), "https://profile", "a named profile is a flag");
    }

    #[test]
    fn a_flag_for_the_database_hides_the_server_of_the_environment() {
        let env = [("WINDLASS_URL", "https://env"), ("WINDLASS_API_KEY", " key\n")];
        let global = check(&["--db", "sqlite:flag.db"], &env, Profile::default()).expect("good");
        assert_eq!(global.url, None);
        let global = check(&[], &env, profile()).expect("good");
        assert_eq!(global.api_key.expect("a key").reveal(), "key");
    }

    #[test]
    fn all_tenants_is_not_narrowed_by_a_profile() {
        assert_eq!(check(&["--all-tenants"], &[], profile()).expect("good").tenant, None);
        assert!(check(&[], &[], profile()).expect("good").tenant.is_some());
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let both = [("WINDLASS_URL", "https://env"), ("WINDLASS_DB", "sqlite:env.db")];
        assert_eq!(check(&[], &both, Profile::default()).expect_err("two places").code(), "usage");
        let named = check(&["--db", "sqlite:flag.db"], &both, Profile::default()).expect("neither is used");
        assert_eq!((named.db.as_deref(), named.url), (Some("sqlite:flag.db"), None));
        let tenant = check(&[], &[("WINDLASS_TENANT", "acme")], Profile::default());
        assert_eq!(tenant.expect_err("no UUID").field(), Some("tenant"));
    }
}
