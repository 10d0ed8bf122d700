use std::{fs, path::Path};

use tidegate_identity::auth::{
    Admitted,
    audit::{Audit, AuditSettings},
};
use tidegate_message::IdentityKind;
use tokio::sync::Notify;

use super::*;
use crate::memory;

/// Rights of this machine's administrator or of another one, and an audit log.
fn access(folder: &Path) -> Access {
    let settings =
        AuditSettings { path: folder.join("audit.log"), bytes_max: 1 << 20, files_max: 1 };
    Access { audit: Audit::start(settings).expect("a thread"), ..Access::default() }
}

/// A client with a certificate; without a roles file those of this machine are its administrators.
fn caller(address: &str) -> Arc<Identity> {
    let address = Some(address.parse().expect("an address"));
    let identity = tidegate_message::Identity {
        address,
        ..tidegate_message::Identity::new(IdentityKind::Certificate, "ada", "")
    };
    Arc::new(Identity::of_user(Admitted::by_certificate(identity)))
}

fn fabric() -> memory::Fabric {
    let fabric = memory::Fabric::default();
    for (digit, name, standing) in [
        ("a", "here", Standing::Here),
        ("b", "lost", Standing::Lost),
        ("c", "doubted", Standing::Doubted),
    ] {
        let (id, name) = (digit.repeat(64), name.to_owned());
        fabric.add(Member { id, name, standing, ..Member::default() });
    }
    fabric
}

#[tokio::test]
async fn node_without_a_fabric_names_the_way_out_and_strangers_learn_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let (access, administrator) = (access(folder.path()), caller("127.0.0.1"));
    let open = |identity: &Arc<Identity>, fabric: Option<&Arc<dyn Fabric>>| {
        FabricDesk::open(&access, identity, fabric).map(|_| ()).map_err(|error| error.code())
    };
    let refused = FabricDesk::open(&access, &administrator, None).err().expect("there is none");
    assert_eq!(refused.code(), Code::FABRIC_OFF);
    assert!(refused.message().contains("`[fabric]` of its configuration"), "{refused}");
    let stranger = caller("203.0.113.7");
    let fabric: Arc<dyn Fabric> = Arc::new(fabric());
    assert_eq!(open(&stranger, Some(&fabric)), Err(Code::ACTION_DENIED));
    assert_eq!(open(&stranger, None), Err(Code::ACTION_DENIED), "not even that there is none");
    assert_eq!(open(&administrator, Some(&fabric)), Ok(()));
}

#[tokio::test]
async fn acts_on_the_fabric_are_audited_and_refused_ones_are_not_done() {
    let folder = tempfile::tempdir().expect("a folder");
    let (access, twin) = (access(folder.path()), fabric());
    let shared: Arc<dyn Fabric> = Arc::new(twin.clone());
    let desk =
        FabricDesk::open(&access, &caller("127.0.0.1"), Some(&shared)).expect("it is allowed");
    assert_eq!(desk.forget("here").await.expect_err("it is here").code(), Code::MEMBER_HERE);
    assert_eq!(desk.forget("lost").await.expect("it is lost").id, "b".repeat(64));
    assert_eq!(desk.forget("doubted").await.expect("it is doubted").name, "doubted");
    desk.leave().await.expect("it leaves");
    assert!(twin.has_left());
    assert_eq!(desk.leave().await.expect_err("it has left").code(), Code::FABRIC_OFF);
    drop((desk, access)); // its thread has written all of it
    let log = fs::read_to_string(folder.path().join("audit.log")).expect("a log");
    let acts: Vec<&str> = log.lines().collect();
    let said = |line: usize, words: [&str; 3]| words.iter().all(|word| acts[line].contains(word));
    assert_eq!(acts.len(), 3, "{log}");
    assert!(
        said(0, ["\"forget-member\"", "\"done\"", &format!("lost {}", "b".repeat(64))]),
        "{log}"
    );
    assert!(said(1, ["\"forget-member\"", "\"done\"", "doubted"]), "{log}");
    assert!(said(2, ["\"leave-fabric\"", "\"done\"", "ada"]), "{log}");
}

/// A fabric whose node hands over until it is let go.
struct Slow(memory::Fabric, Arc<Notify>);

#[async_trait]
impl Fabric for Slow {
    async fn status(&self) -> Result<FabricStatus, ApiError> {
        self.0.status().await
    }

    async fn members(&self) -> Result<Vec<Member>, ApiError> {
        self.0.members().await
    }

    async fn locate(&self, sought: &Sought) -> Result<Vec<Located>, ApiError> {
        self.0.locate(sought).await
    }

    async fn forget(&self, id: &str) -> Result<(), ApiError> {
        self.0.forget(id).await
    }

    async fn leave(&self) -> Result<Left, ApiError> {
        self.1.notified().await;
        self.0.leave().await
    }
}

#[tokio::test(start_paused = true)]
async fn node_that_hands_over_for_long_leaves_after_its_caller_has_an_answer() {
    let (twin, let_go) = (fabric(), Arc::new(Notify::new()));
    let shared: Arc<dyn Fabric> = Arc::new(Slow(twin.clone(), let_go.clone()));
    let access = Access::default();
    let desk =
        FabricDesk::open(&access, &caller("127.0.0.1"), Some(&shared)).expect("it is allowed");
    let refused = desk.leave().await.expect_err("it is not done in time");
    assert_eq!(refused.code(), Code::LIMIT_REACHED);
    assert!(!twin.has_left());
    let_go.notify_one();
    while !twin.has_left() {
        tokio::task::yield_now().await;
    }
}
