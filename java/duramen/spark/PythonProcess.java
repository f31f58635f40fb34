package duramen.spark;

import java.io.ByteArrayOutputStream;
import java.io.Closeable;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.spark.TaskContext;
import org.apache.spark.api.python.PythonUtils;
import scala.jdk.javaapi.CollectionConverters;

/**
 * A {@code python -m duramen.spark.planner}: one line of JSON to it, one line back, and Arrow streams in between. Used by
 * one thread at a time. It ends when its standard input does, so it never outlives this JVM for long; one that nobody
 * has used for a minute is ended.
 */
final class PythonProcess implements Closeable {
    static final ObjectMapper JSON = new ObjectMapper();
    private static final long IDLE_MS = 60_000;
    private static final int MAX_LINE_BYTES = 1 << 30;
    private static final Map<String, Deque<PythonProcess>> IDLE = new HashMap<>();
    private static final long LOOK_MS = 200;
    private static final Set<PythonProcess> IN_TASKS = ConcurrentHashMap.newKeySet();
    private static ScheduledExecutorService reaper;

    private final String python;
    private final Process process;
    private final OutputStream in;
    final InputStream out;
    private long idleSinceMs;
    private volatile TaskContext task;

    private PythonProcess(String python) throws IOException {
        this.python = python;
        ProcessBuilder builder = new ProcessBuilder(python, "-m", "duramen.spark.planner");
        Map<String, String> environment = builder.environment();
        String path = PythonUtils.mergePythonPaths(CollectionConverters.asScala(
            java.util.List.of(PythonUtils.sparkPythonPath(), environment.getOrDefault("PYTHONPATH", ""))).toSeq());
        if (!path.isEmpty()) environment.put("PYTHONPATH", path);
        builder.redirectError(ProcessBuilder.Redirect.INHERIT);
        process = builder.start();
        in = process.getOutputStream();
        out = process.getInputStream();
    }

    /** A process for the caller alone, until {@link #release} or {@link #close}. */
    static PythonProcess borrow(String python) throws IOException {
        synchronized (IDLE) {
            Deque<PythonProcess> there = IDLE.get(python);
            while (there != null && !there.isEmpty()) {
                PythonProcess one = there.pop();
                if (one.process.isAlive()) return one;
                one.close();
            }
        }
        return new PythonProcess(python);
    }

    void release() {
        IN_TASKS.remove(this);
        synchronized (IDLE) {
            idleSinceMs = System.currentTimeMillis();
            IDLE.computeIfAbsent(python, name -> new ArrayDeque<>()).push(this);
            startReaper();
        }
    }

    /** Kill the process if this task is cancelled, whose thread may wait for it, until it is released or closed. */
    void endWith(TaskContext task) {
        if (task == null) return;
        this.task = task;
        IN_TASKS.add(this);
        synchronized (IDLE) {
            startReaper();
        }
    }

    private static void startReaper() {
        if (reaper != null) return;
        reaper = Executors.newSingleThreadScheduledExecutor(work -> {
            Thread thread = new Thread(work, "duramen-python-reaper");
            thread.setDaemon(true);
            return thread;
        });
        reaper.scheduleWithFixedDelay(PythonProcess::reap, IDLE_MS, IDLE_MS / 4, TimeUnit.MILLISECONDS);
        reaper.scheduleWithFixedDelay(PythonProcess::killCancelled, LOOK_MS, LOOK_MS, TimeUnit.MILLISECONDS);
    }

    private static void killCancelled() {
        for (PythonProcess one : IN_TASKS) {
            if (one.task.isInterrupted()) one.process.destroyForcibly();
        }
    }

    private static void reap() {
        long before = System.currentTimeMillis() - IDLE_MS;
        synchronized (IDLE) {
            for (Deque<PythonProcess> there : IDLE.values()) {
                there.removeIf(one -> {
                    boolean isOld = one.idleSinceMs < before;
                    if (isOld) one.close();
                    return isOld;
                });
            }
        }
    }

    JsonNode ask(ObjectNode request) throws IOException {
        tell(request);
        return answer();
    }

    void tell(ObjectNode request) throws IOException {
        in.write(JSON.writeValueAsBytes(request));
        in.write('\n');
        in.flush();
    }

    JsonNode answer() throws IOException {
        ByteArrayOutputStream line = new ByteArrayOutputStream();
        for (int c = out.read(); c != '\n'; c = out.read()) {
            if (c < 0) throw new EOFException("the Python process of duramen ended" + status());
            if (line.size() == MAX_LINE_BYTES) throw new IOException("an answer of Python has more than 1 GiB");
            line.write(c);
        }
        return JSON.readTree(line.toString(StandardCharsets.UTF_8));
    }

    private String status() {
        try {
            if (process.waitFor(2, TimeUnit.SECONDS)) return " with status " + process.exitValue();
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
        return "";
    }

    @Override
    public void close() {
        IN_TASKS.remove(this);
        process.destroyForcibly();
        for (Closeable one : new Closeable[] {in, out}) {
            try {
                one.close();
            } catch (IOException gone) {
                // it has ended
            }
        }
    }
}
