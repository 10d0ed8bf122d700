package tidegate.vision;

import java.io.IOException;
import okhttp3.Call;
import okhttp3.Callback;
import okhttp3.HttpUrl;
import okhttp3.MediaType;
import okhttp3.OkHttpClient;
import okhttp3.Request;
import okhttp3.RequestBody;
import okhttp3.Response;
import okhttp3.ResponseBody;
import okhttp3.WebSocket;
import okhttp3.WebSocketListener;
import okio.ByteString;
import org.json.JSONException;
import org.json.JSONObject;

/** The ways over HTTP. */
final class HttpConnections {
    private static final MediaType JPEG = MediaType.get("image/jpeg");
    private static final MediaType PNG = MediaType.get("image/png");
    /** Bytes that OkHttp keeps for a WebSocket. */
    private static final long QUEUE_BYTES_MAX = 16 << 20;
    private static final int NORMAL_CLOSURE = 1000;
    private static final int TRY_AGAIN_LATER = 1013;

    private HttpConnections() {}

    private static Request.Builder request(HttpUrl base, String path, String authorization) {
        Request.Builder request = new Request.Builder().url(base.newBuilder().encodedPath(path).build());
        return authorization == null ? request : request.header("Authorization", authorization);
    }

    private static VisionException failureOf(Response response, String text, boolean isUpgrade) {
        String message = "the server answered with " + response.code();
        try {
            String said = Result.messageOf(new JSONObject(text));
            message = said.isEmpty() ? message : said;
        } catch (JSONException error) {
            // Another server answered, such as a proxy.
        }
        String after = response.header("Retry-After");
        long retryAfterMs = after != null && after.matches("\\d{1,6}") ? Long.parseLong(after) * 1000 : 0;
        return new VisionException(message, false, isUpgrade || isLasting(response.code()), retryAfterMs);
    }

    /** Whether the status is about the caller or the server, and not about the image. */
    private static boolean isLasting(int status) {
        return status == 401 || status == 403 || status == 404 || status == 429 || status >= 500;
    }

    private static VisionException unreachable(Throwable error) {
        return new VisionException("the server is not reached: " + error.getMessage(), true);
    }

    /** A request for each image. */
    static final class Rest implements Connection {
        private final OkHttpClient client;
        private final HttpUrl base;
        private final String authorization;
        private Call call;
        private boolean isClosed;

        Rest(OkHttpClient client, HttpUrl base, String authorization) {
            this.client = client;
            this.base = base;
            this.authorization = authorization;
        }

        @Override
        public void send(byte[] image, CameraMode mode, Answer answer) {
            boolean isPng = image.length > 1 && image[0] == (byte) 0x89 && image[1] == 0x50;
            RequestBody body = RequestBody.create(image, isPng ? PNG : JPEG);
            Call asked = client.newCall(request(base, mode.path, authorization).post(body).build());
            synchronized (this) {
                if (isClosed) {
                    return;
                }
                call = asked;
            }
            asked.enqueue(new Callback() {
                @Override
                public void onFailure(Call call, IOException error) {
                    answer.failed(unreachable(error));
                }

                @Override
                public void onResponse(Call call, Response response) {
                    try (ResponseBody read = response.body()) {
                        String text = read == null ? "" : read.string();
                        if (response.isSuccessful()) {
                            answer.answered(text);
                        } else {
                            answer.failed(failureOf(response, text, false));
                        }
                    } catch (IOException error) {
                        answer.failed(unreachable(error));
                    }
                }
            });
        }

        @Override
        public synchronized void close() {
            isClosed = true;
            if (call != null) {
                call.cancel();
            }
        }
    }

    /** One WebSocket for each camera mode, opened at the first image. */
    static final class Socket extends WebSocketListener implements Connection {
        private final OkHttpClient client;
        private final HttpUrl base;
        private final String authorization;
        private WebSocket socket;
        private CameraMode mode;
        private Answer waiting;
        private boolean isClosed;

        Socket(OkHttpClient client, HttpUrl base, String authorization) {
            this.client = client;
            this.base = base;
            this.authorization = authorization;
        }

        @Override
        public void send(byte[] image, CameraMode mode, Answer answer) {
            WebSocket open;
            synchronized (this) {
                if (isClosed) {
                    return;
                }
                if (socket != null && this.mode != mode) {
                    socket.close(NORMAL_CLOSURE, null);
                    socket = null;
                }
                if (socket == null) {
                    this.mode = mode;
                    socket = client.newWebSocket(request(base, "/ws" + mode.path, authorization).build(), this);
                }
                waiting = answer;
                open = socket;
            }
            // OkHttp keeps it until the connection is open. It does not where the connection has failed or closes meanwhile, whose reason is
            // about to come by onFailure or onClosing, and where the image is too large.
            if (!open.send(ByteString.of(image)) && image.length > QUEUE_BYTES_MAX) {
                over(open, new VisionException("the connection does not take the image", true));
            }
        }

        @Override
        public void onMessage(WebSocket from, String text) {
            Answer answer = taken(from);
            if (answer != null) {
                answer.answered(text);
            }
        }

        @Override
        public void onClosing(WebSocket from, int code, String reason) {
            from.close(NORMAL_CLOSURE, null);
            String text = reason.isEmpty() ? "the server closed the connection with " + code : reason;
            over(from, new VisionException(text, code != TRY_AGAIN_LATER, code != TRY_AGAIN_LATER, code == TRY_AGAIN_LATER ? 1000 : 0));
        }

        @Override
        public void onFailure(WebSocket from, Throwable error, Response response) {
            if (response == null) {
                over(from, unreachable(error));
                return;
            }
            String text = "";
            try (ResponseBody body = response.body()) {
                text = body == null ? "" : body.string();
            } catch (IOException cut) {
                // The status says enough.
            }
            over(from, failureOf(response, text, true));
        }

        /** Ends `from`, if it is still the one in use, and fails the image that was under way. */
        private void over(WebSocket from, VisionException error) {
            Answer answer = taken(from);
            synchronized (this) {
                if (socket == from) {
                    socket = null;
                }
            }
            if (answer != null) {
                answer.failed(error);
            }
        }

        private synchronized Answer taken(WebSocket from) {
            if (socket != from) {
                return null;
            }
            Answer answer = waiting;
            waiting = null;
            return answer;
        }

        @Override
        public synchronized void close() {
            isClosed = true;
            waiting = null;
            if (socket != null) {
                // Not politely: a connection that does not answer would not say goodbye either.
                socket.cancel();
                socket = null;
            }
        }
    }
}
