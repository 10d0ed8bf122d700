//! The observers: an application at each node, which looks at the fabric as that node shows it.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use futures::{StreamExt as _, future::join_all};
use tidegate_api::{ApiError, Event, Member, MembersPage, Place, Standing, SubscribeRequest};
use tidegate_client::Client;
use tidegate_message::Code;
use tokio::time::{sleep, timeout};

use super::{Board, CAMERA, NODES};
use crate::demo::{
    stage::ClientOptions,
    watch::{connect, connect_here, runtime},
};

/// How often each looks: a change is seen so much later at the most, and as much again until the node shows it.
const EVERY: Duration = Duration::from_millis(100);
/// Longest wait for an answer of a node, which may hang.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Longest wait for a frame.
const FRAME_MAX: Duration = Duration::from_secs(10);

/// The members as one node shows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sight {
    /// Of each node, whether it is here and linked. Of the node itself false.
    pub(super) is_linked: [bool; NODES.len()],
    /// Of each node, whether it is known.
    pub(super) is_known: [bool; NODES.len()],
}

impl Sight {
    fn of(members: &[Member]) -> Self {
        let mut sight = Self::default();
        for member in members {
            let Some(index) = NODES.iter().position(|node| node.name == member.name) else {
                continue;
            };
            sight.is_known[index] = true;
            sight.is_linked[index] = member.is_linked && member.standing == Standing::Here;
        }
        sight
    }
}

/// Looks until all is over. A node that gives no answer shows nothing.
pub(super) fn look(api: &ClientOptions, index: usize, board: &Board) -> Result<(), ApiError> {
    runtime()?.block_on(async {
        let mut client: Option<Client> = None;
        while !board.is_over.load(Relaxed) {
            let asked = timeout(ANSWER_MAX, async {
                let asked = match client.take() {
                    Some(client) => client,
                    None => connect(api).await?,
                };
                let page = MembersPage { after: String::new(), limit: 100 };
                Ok::<_, ApiError>((asked.members(page).await?, asked))
            });
            let sight = match asked.await {
                Ok(Ok((members, asked))) => {
                    client = Some(asked);
                    Ok(Sight::of(&members))
                }
                Ok(Err(error)) => Err(error.chain()),
                Err(_) => Err(format!("no answer within {} s", ANSWER_MAX.as_secs())),
            };
            board.show(index, sight);
            sleep(EVERY).await;
        }
        Ok(())
    })
}

/// The view of a node, and how many members stand still in each of its cells.
///
/// # Errors
/// Those of the call.
pub(super) fn map(api: &ClientOptions) -> Result<(String, Vec<u32>), ApiError> {
    runtime()?.block_on(async {
        let status = connect(api).await?.fabric().await?;
        let members = status.cells.iter().map(|cell| cell.members).filter(|members| *members > 0);
        Ok((status.view_hash, members.collect()))
    })
}

/// Where a node that does not have the camera says that it is.
///
/// # Errors
/// Another failure than [`Code::CAMERA_ELSEWHERE`], or none.
pub(super) fn camera(api: &ClientOptions) -> Result<Place, ApiError> {
    runtime()?.block_on(async {
        let error = match first(&connect_here(api).await?).await {
            Ok(()) => {
                let text = format!("camera {CAMERA} is served where it is not");
                return Err(ApiError::new(Code::INTERNAL, text));
            }
            Err(error) => error,
        };
        match (error.code(), error.place()) {
            (Code::CAMERA_ELSEWHERE, Some(place)) => Ok(place.clone()),
            _ => Err(error),
        }
    })
}

/// Takes a frame of the camera where it is, from another node.
///
/// # Errors
/// None of the addresses gives one.
pub(super) fn frame(place: &Place, pki: &ClientOptions) -> Result<(), ApiError> {
    runtime()?.block_on(async {
        let tries = place.addresses.iter().map(async |address| {
            let endpoint = format!("https://{address}");
            first(&connect(&ClientOptions { endpoint, pki: pki.pki.clone() }).await?).await
        });
        let tried = join_all(tries).await;
        let nowhere = ApiError::new(Code::LINK_DOWN, "the node of the camera says no address");
        let mut failed = nowhere;
        for tried in tried {
            match tried {
                Ok(()) => return Ok(()),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    })
}

async fn first(client: &Client) -> Result<(), ApiError> {
    let request = SubscribeRequest::new(CAMERA, Duration::from_secs(2), 0.5)?;
    let frame = async {
        let mut subscription = client.subscribe(request).await?;
        while let Some(event) = subscription.next().await {
            if let Event::Frame(_) = event? {
                return Ok(());
            }
        }
        Err(ApiError::new(Code::FRAME_MISSING, "the subscription ended without a frame"))
    };
    let late = |_| {
        let text = format!("no frame of camera {CAMERA} came within {} s", FRAME_MAX.as_secs());
        Err(ApiError::new(Code::FRAME_MISSING, text))
    };
    timeout(FRAME_MAX, frame).await.unwrap_or_else(late)
}
