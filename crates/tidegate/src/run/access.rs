//! Access control while a node runs: users, rules, the keys of tokens and revocation lists, as they change.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, OnceLock, PoisonError, Weak},
    time::Duration,
};

use async_trait::async_trait;
use tidegate_api::ApiError;
use tidegate_config::Config;
use tidegate_identity::{
    access::Access,
    auth::{
        departed::Departed,
        fetch::{self, Fetcher},
    },
};
use tidegate_message::{Code, IdentityKind, error_chain};
use tidegate_process::clock;
use tidegate_server::server::Server;
use tokio::{sync::watch, time::MissedTickBehavior};
use tokio_util::task::AbortOnDropHandle;

use super::{
    certificates::{refresh_revocations, revocations_unknown},
    findings::Findings,
    part::{Exchange, Part, Ports, Reach, Running, Started},
    users,
};

/// The part that has access control.
pub(super) struct Users;

/// How often the revocation lists are looked at: they may be rewritten.
const LISTS_LOOKED_AT: Duration = Duration::from_secs(5);
/// How often sessions of users that are gone are looked for.
const DEPARTURES_LOOKED_AT: Duration = Duration::from_secs(60);

#[async_trait]
impl Part for Users {
    fn name(&self) -> &'static str {
        "users, rules and keys of tokens"
    }

    fn check(&self, config: &Config, access: &Access, found: &mut Findings) {
        match access.revocations.look_in(&config.state_dir()) {
            Ok(older) => {
                for error in older {
                    found.warnings.say(Code::CONFIG_INVALID, error_chain(&error));
                }
            }
            Err(error) => found.problems.note(revocations_unknown(&error)),
        }
        found.problems.add(users::problems(config));
        for warning in users::warnings(config).into_iter().chain(users::vanished(config)) {
            found.warnings.say(Code::CONFIG_INVALID, warning);
        }
        found.problems.take(users::fetcher(config));
    }

    fn reaches(&self, config: &Config) -> Vec<Reach> {
        let Ok(Some(fetcher)) = users::fetcher(config) else { return Vec::new() };
        let fetched = async move { fetcher.fetch().await.map(drop).map_err(|e| error_chain(&e)) };
        vec![("auth.token_keys_url".to_owned(), Box::pin(fetched))]
    }

    async fn start(&self, config: &Config, ports: &mut Ports) -> Result<Started, ApiError> {
        let (fetchers, fetcher) = watch::channel(users::fetcher(config)?);
        let access = ports.access.clone();
        // Users may have gone while the node was down. Where tokens are taken, others may name them.
        let departed = match config.mqtt.enabled && access.authenticator.has_users_alone() {
            true => Departed::read(&config.state_dir(), clock::now()).unwrap_or_else(|error| {
                tracing::warn!(%error, "users that are gone since the last start are not noticed");
                Departed::default()
            }),
            false => Departed::default(),
        };
        let users = Arc::new(RunningUsers {
            access: access.clone(),
            server: ports.server.clone(),
            departed: Mutex::new(departed),
            state: config.state_dir(),
            fetchers,
        });
        let withdrawn = Arc::downgrade(&users);
        let withdrawn = move || {
            if let Some(server) = withdrawn.upgrade().and_then(|users| users.server()) {
                server.kick_tokens();
            }
        };
        let tasks = [
            tokio::spawn(fetch::run(fetcher, access.authenticator.clone(), withdrawn)),
            tokio::spawn(watch_revocations(access, ports.server.clone())),
            tokio::spawn(watch_departures(Arc::downgrade(&users))),
        ];
        Ok(Some(Box::new(Begun { users, _tasks: tasks.map(AbortOnDropHandle::new) })))
    }
}

struct Begun {
    users: Arc<RunningUsers>,
    _tasks: [AbortOnDropHandle<()>; 3],
}

struct RunningUsers {
    access: Access,
    server: Arc<OnceLock<Weak<Server>>>,
    /// Users whose sessions are still there.
    departed: Mutex<Departed>,
    /// The folder in which those are kept.
    state: PathBuf,
    fetchers: watch::Sender<Option<Fetcher>>,
}

#[async_trait]
impl Running for Begun {
    fn plan<'a>(&'a self, new: &'a Config) -> Result<Exchange<'a>, ApiError> {
        let users = &self.users;
        let fetcher = users::fetcher(new)?;
        let rules = users::sources_again(new, &users.access.authenticator)?;
        let rules =
            users.access.authenticator.prepare(rules).map_err(|error| users::unread(&error))?;
        Ok(Box::new(move |_| {
            let reloaded = users.access.authenticator.exchange(rules);
            // No task fetches any more if it cannot be sent: the node stops.
            let _ = users.fetchers.send(fetcher);
            if let Some(server) = users.server() {
                server.kick_users(reloaded.users_changed.iter().cloned().collect());
                if reloaded.tokens_changed {
                    server.kick_tokens();
                }
            }
            users.look();
            tracing::info!(
                users = reloaded.users,
                users_changed = reloaded.users_changed.join(", "),
                rules = reloaded.acl_rules,
                rules_changed = reloaded.acl_changed,
                roles = reloaded.roles_rules,
                roles_changed = reloaded.roles_changed,
                tokens_changed = reloaded.tokens_changed,
                "users and rules reloaded"
            );
            for warning in users::warnings(new) {
                tracing::warn!("{warning}");
            }
            Ok(())
        }))
    }

    async fn ready(&self) {
        self.users.look();
    }

    async fn stop(self: Box<Self>) {}
}

impl RunningUsers {
    fn server(&self) -> Option<Arc<Server>> {
        self.server.get().and_then(Weak::upgrade)
    }

    /// Notes which users the password file has now, and says which are gone.
    fn look(&self) {
        let Some(server) = self.server() else { return };
        let Some(users) = self.access.authenticator.users() else { return };
        let mut departed = self.departed.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = departed.look(clock::now(), users);
        self.keep(&departed);
        let (leaving, others) = (departed.leaving(), departed.has_strangers());
        drop(departed);
        let authenticator = self.access.authenticator.clone();
        let others = others && authenticator.has_users_alone();
        server.mark_gone_users(move |owner| {
            // A client with a token may have the name of a user.
            let is_meant = owner.until.is_none() && leaving.contains(&*owner.name);
            (is_meant || others) && !authenticator.has_user(&owner.name)
        });
        let Some(gone) = gone else { return };
        let (users, of, hours) = (gone.users.join(", "), gone.of, gone.grace.as_secs() / 3600);
        match gone.is_many() {
            true => tracing::error!(
                users,
                of,
                hours,
                "more than half of the users are gone from the password file: they are refused, and their sessions wait for so many \
                 hours; if that was not meant, bring the file back and reload; `tidegate sessions end` ends sessions at once"
            ),
            false => tracing::warn!(
                users,
                of,
                hours,
                "users are gone from the password file: they are refused, and their sessions wait for so many hours; \
                 `tidegate sessions end` ends sessions at once"
            ),
        }
    }

    fn keep(&self, departed: &Departed) {
        if let Err(error) = departed.write(&self.state) {
            tracing::warn!(%error, "users that are gone at the next start may not be noticed");
        }
    }

    /// Ends the sessions of users that have been gone for long: messages that wait there are dropped, and the client identifiers are free. A
    /// client with a token may have the name of a user.
    fn end_departed(&self) {
        let Some(server) = self.server() else { return };
        let mut departed = self.departed.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(due) = departed.due(clock::now()) else { return };
        self.keep(&departed);
        let leaving = departed.leaving();
        drop(departed);
        if !due.users.is_empty() {
            let users: Vec<&str> = due.users.iter().map(String::as_str).collect();
            tracing::warn!(
                users = users.join(", "),
                "the sessions of users that are gone have ended"
            );
        }
        let authenticator = self.access.authenticator.clone();
        let strangers = due.strangers && authenticator.has_users_alone();
        server.end_sessions(move |_, owner| {
            let is_due = owner.until.is_none() && due.users.contains(&*owner.name);
            let is_stranger = strangers && !leaving.contains(&*owner.name);
            owner.kind == IdentityKind::User
                && (is_due || is_stranger)
                && !authenticator.has_user(&owner.name)
        });
    }
}

/// Looks at the revocation lists from time to time, and at once when another node has sent a newer one.
pub(super) async fn watch_revocations(access: Access, server: Arc<OnceLock<Weak<Server>>>) {
    let mut ticks = tokio::time::interval(LISTS_LOOKED_AT);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        // Since before the lists are looked at, so that none is missed.
        let changed = access.revocations.changed();
        let (to_look, server) = (access.clone(), server.get().and_then(Weak::upgrade));
        let looked = tokio::task::spawn_blocking(move || {
            refresh_revocations(&to_look, server.as_deref(), false);
        });
        if let Err(error) = looked.await {
            tracing::error!(%error, "the revocation lists were not checked");
        }
        tokio::select! {
            _ = ticks.tick() => {}
            () = changed => {}
        }
    }
}

/// Ends the sessions of users that have been gone for long.
async fn watch_departures(users: Weak<RunningUsers>) {
    let mut ticks = tokio::time::interval(DEPARTURES_LOOKED_AT);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(users) = users.upgrade() else { return };
        if let Err(error) = tokio::task::spawn_blocking(move || users.end_departed()).await {
            tracing::error!(%error, "the sessions of users that are gone were not ended");
        }
    }
}
