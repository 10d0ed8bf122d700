package tidegate.vision;

/** One way to the server. */
interface Connection {
    /** Called once for each image, from any thread. */
    interface Answer {
        void answered(String json);

        void failed(VisionException error);
    }

    /** Sends one image. The one before was answered, or failed. */
    void send(byte[] image, CameraMode mode, Answer answer);

    /** Ends it; an image under way fails or is forgotten, and one that is sent afterwards is forgotten. */
    void close();
}
