import com.rabbitmq.stream.ConsumerBuilder;
import com.rabbitmq.stream.Environment;
import com.rabbitmq.stream.OffsetSpecification;
import com.rabbitmq.stream.Producer;
import com.rabbitmq.stream.compression.Compression;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/**
 * Consumes or publishes with RabbitMQ's own Java client: "consume PORT STREAM COUNT [FILTER]" prints offset, time and
 * body (in base64) of every message, or of those in chunks that may have the filter value; "publish PORT STREAM CODEC SUB_ENTRY_SIZE" publishes the bodies that it reads, one per
 * line, in sub-batches.
 */
public class StreamClient {
  public static void main(String[] args) throws Exception {
    int port = Integer.parseInt(args[1]);
    try (Environment environment = Environment.builder().host("127.0.0.1").port(port).build()) {
      if (args[0].equals("consume")) {
        consume(environment, args[2], Integer.parseInt(args[3]), args.length > 4 ? args[4] : null);
      } else {
        publish(environment, args[2], Compression.valueOf(args[3].toUpperCase()), Integer.parseInt(args[4]));
      }
    }
  }

  static void consume(Environment environment, String stream, int count, String filter) throws Exception {
    CountDownLatch enough = new CountDownLatch(count);
    List<String> got = new ArrayList<>();
    ConsumerBuilder builder = environment.consumerBuilder();
    if (filter != null) {
      builder.filter().values(filter).postFilter(message -> true);
    }
    builder
        .stream(stream)
        .offset(OffsetSpecification.first())
        .messageHandler(
            (context, message) -> {
              String body = Base64.getEncoder().encodeToString(message.getBodyAsBinary());
              synchronized (got) {
                got.add(context.offset() + " " + context.timestamp() + " " + body);
              }
              enough.countDown();
            })
        .build();
    enough.await(20, TimeUnit.SECONDS);
    Thread.sleep(300);
    synchronized (got) {
      got.forEach(System.out::println);
    }
  }

  static void publish(Environment environment, String stream, Compression codec, int size) throws Exception {
    List<byte[]> bodies = new ArrayList<>();
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      bodies.add(Base64.getDecoder().decode(line));
    }
    CountDownLatch confirmed = new CountDownLatch(bodies.size());
    try (Producer producer =
        environment.producerBuilder().stream(stream).subEntrySize(size).compression(codec).build()) {
      for (byte[] body : bodies) {
        producer.send(producer.messageBuilder().addData(body).build(), status -> confirmed.countDown());
      }
      confirmed.await(20, TimeUnit.SECONDS);
    }
    System.out.println(bodies.size() - confirmed.getCount());
  }
}
