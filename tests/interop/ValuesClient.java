import com.rabbitmq.stream.Environment;
import com.rabbitmq.stream.Message;
import com.rabbitmq.stream.MessageBuilder;
import com.rabbitmq.stream.OffsetSpecification;
import com.rabbitmq.stream.Producer;
import org.apache.qpid.proton.amqp.Binary;
import org.apache.qpid.proton.amqp.Decimal128;
import org.apache.qpid.proton.amqp.Decimal32;
import org.apache.qpid.proton.amqp.Decimal64;
import org.apache.qpid.proton.amqp.messaging.AmqpValue;
import org.apache.qpid.proton.amqp.messaging.Data;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Date;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/**
 * "publish PORT STREAM" publishes a message with every type of property that the client's builder supports, in each of the
 * kinds of message id; "consume PORT STREAM COUNT" prints what the client makes of each message: lines of offset, name,
 * class and text, the text in base64.
 */
public class ValuesClient {
  public static void main(String[] args) throws Exception {
    int port = Integer.parseInt(args[1]);
    try (Environment environment = Environment.builder().host("127.0.0.1").port(port).build()) {
      if (args[0].equals("consume")) {
        consume(environment, args[2], Integer.parseInt(args[3]));
      } else {
        publish(environment, args[2]);
      }
    }
  }

  static void publish(Environment environment, String stream) throws Exception {
    CountDownLatch confirmed = new CountDownLatch(4);
    try (Producer producer = environment.producerBuilder().stream(stream).build()) {
      for (int number = 0; number < 4; number++) {
        producer.send(message(producer.messageBuilder(), number), status -> confirmed.countDown());
      }
      confirmed.await(20, TimeUnit.SECONDS);
    }
    System.out.println(4 - confirmed.getCount());
  }

  static Message message(MessageBuilder builder, int number) {
    byte[] raw = {(byte) 0xff, 0};
    MessageBuilder.PropertiesBuilder properties = builder.properties();
    switch (number) {
      case 0: properties.messageId("id").correlationId("other"); break;
      case 1: properties.messageId(Long.MAX_VALUE).correlationId(7L); break;
      case 2: properties.messageId(new UUID(1, 2)).correlationId(new UUID(3, 4)); break;
      default: properties.messageId(raw).correlationId(new byte[0]);
    }
    properties.userId(raw).to("to").subject("grün").replyTo("reply").contentType("text/plain").contentEncoding("gzip");
    properties.absoluteExpiryTime(1_800_000_000_123L).creationTime(1_700_000_000_456L).groupId("g");
    properties.groupSequence(4_000_000_000L).replyToGroupId("rg").messageBuilder();
    builder
        .applicationProperties()
        .entry("boolean", true).entry("byte", (byte) -5).entry("short", (short) -300).entry("int", -70000)
        .entry("long", Long.MIN_VALUE).entryUnsigned("ubyte", (byte) -1).entryUnsigned("ushort", (short) -1)
        .entryUnsigned("uint", -1).entryUnsigned("ulong", -1L).entry("float", 1.1f).entry("double", 0.1)
        .entry("char", 'ä')
        .entryTimestamp("timestamp", 1_700_000_000_789L).entry("uuid", new UUID(5, 6)).entry("binary", raw)
        .entry("string", "text\u0000").entrySymbol("symbol", "sym").messageBuilder();
    builder.messageAnnotations().entry("x-opt", "annotation").entry("x-number", 9).messageBuilder();
    return builder.addData(("body " + number).getBytes(StandardCharsets.UTF_8)).build();
  }

  static void consume(Environment environment, String stream, int count) throws Exception {
    CountDownLatch enough = new CountDownLatch(count);
    List<String> got = new ArrayList<>();
    environment
        .consumerBuilder()
        .stream(stream)
        .offset(OffsetSpecification.first())
        .messageHandler(
            (context, message) -> {
              synchronized (got) {
                describe(got, context.offset(), message);
              }
              enough.countDown();
            })
        .build();
    enough.await(20, TimeUnit.SECONDS);
    synchronized (got) {
      got.forEach(System.out::println);
    }
  }

  static void describe(List<String> got, long offset, Message message) {
    add(got, offset, "body", message.getBody() instanceof byte[] ? message.getBodyAsBinary() : message.getBody());
    if (message.getProperties() != null) {
      add(got, offset, "message_id", message.getProperties().getMessageId());
      add(got, offset, "correlation_id", message.getProperties().getCorrelationId());
      add(got, offset, "user_id", message.getProperties().getUserId());
      add(got, offset, "to", message.getProperties().getTo());
      add(got, offset, "subject", message.getProperties().getSubject());
      add(got, offset, "reply_to", message.getProperties().getReplyTo());
      add(got, offset, "content_type", message.getProperties().getContentType());
      add(got, offset, "content_encoding", message.getProperties().getContentEncoding());
      add(got, offset, "absolute_expiry_time", new Date(message.getProperties().getAbsoluteExpiryTime()));
      add(got, offset, "creation_time", new Date(message.getProperties().getCreationTime()));
      add(got, offset, "group_id", message.getProperties().getGroupId());
      add(got, offset, "group_sequence", message.getProperties().getGroupSequence());
      add(got, offset, "reply_to_group_id", message.getProperties().getReplyToGroupId());
    }
    addAll(got, offset, "application_properties.", message.getApplicationProperties());
    addAll(got, offset, "annotations.", message.getMessageAnnotations());
  }

  static void addAll(List<String> got, long offset, String prefix, Map<String, Object> found) {
    if (found != null) {
      found.forEach((name, value) -> add(got, offset, prefix + name, value));
    }
  }

  static void add(List<String> got, long offset, String name, Object value) {
    if (value instanceof AmqpValue) {
      value = ((AmqpValue) value).getValue();
    } else if (value instanceof Data) {
      value = ((Data) value).getValue();
    }
    if (value == null) {
      return;
    }
    String text = String.valueOf(value);
    if (value instanceof Binary) {
      Binary raw = (Binary) value;
      value = java.util.Arrays.copyOfRange(raw.getArray(), raw.getArrayOffset(), raw.getArrayOffset() + raw.getLength());
    }
    if (value instanceof Decimal32) {
      text = String.format("0x%08x", ((Decimal32) value).getBits());
    } else if (value instanceof Decimal64) {
      text = String.format("0x%016x", ((Decimal64) value).getBits());
    } else if (value instanceof Decimal128) {
      text = String.format("0x%032x", new java.math.BigInteger(1, ((Decimal128) value).asBytes()));
    }
    if (value instanceof byte[]) {
      text = Base64.getEncoder().encodeToString((byte[]) value);
    } else if (value instanceof Date) {
      text = String.valueOf(((Date) value).getTime());
    }
    String line = Base64.getEncoder().encodeToString(text.getBytes(StandardCharsets.UTF_8));
    got.add(offset + "\t" + name + "\t" + value.getClass().getSimpleName() + "\t" + line);
  }
}
