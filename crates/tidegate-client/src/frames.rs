//! The client as the port by which services read frames, so that one can look at another node's cameras.

use async_trait::async_trait;
use futures::StreamExt;
use tidegate_message::{CameraName, Demand, Instant};
use tidegate_ports::{Frames, Subscription as Port};

use crate::{
    ApiError, CameraInfo, Changes, Client, Event, Original, Started, SubscribeRequest, Subscription,
};

#[async_trait]
impl Frames for Client {
    async fn cameras(&self) -> Result<Vec<CameraInfo>, ApiError> {
        self.cameras().await
    }

    async fn camera(&self, name: &CameraName) -> Result<CameraInfo, ApiError> {
        self.camera(name).await
    }

    async fn subscribe(&self, request: SubscribeRequest) -> Result<Box<dyn Port>, ApiError> {
        Ok(Box::new(self.subscribe(request).await?))
    }

    async fn fetch_original(
        &self,
        camera: &CameraName,
        captured_at: Instant,
    ) -> Result<Original, ApiError> {
        self.fetch_original(camera, captured_at).await
    }
}

#[async_trait]
impl Port for Subscription {
    fn started(&self) -> Started {
        Started { id: self.id(), demand: self.demand() }
    }

    async fn next_event(&mut self) -> Option<Result<Event, ApiError>> {
        StreamExt::next(self).await
    }

    async fn update(&self, changes: Changes) -> Result<Demand, ApiError> {
        self.update(changes).await
    }
}
