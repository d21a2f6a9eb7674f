import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;

/** A queue with room for one, its sender three times as slow as its receivers. */
final class Queue {
    private static final BlockingQueue<Integer> FORGE = new ArrayBlockingQueue<>(1);
    private static final int PIECES = 1500;
    private static final int LAST = -1;

    static boolean takeFromTheForge() throws InterruptedException {
        boolean isPiece = FORGE.take() != LAST;
        if (!isPiece) {
            FORGE.put(LAST); // for the next one
        }
        return isPiece;
    }

    static void handFromTheForge(int piece) throws InterruptedException {
        FORGE.put(piece);
        sent = piece;
    }

    private static volatile int sent;

    static long polish() throws InterruptedException {
        long waited = 0;
        while (true) {
            long since = System.nanoTime();
            boolean isPiece = takeFromTheForge();
            waited += System.nanoTime() - since;
            if (!isPiece) {
                return waited;
            }
            Planted.burn(200);
        }
    }

    public static void main(String[] args) throws Exception {
        int n = Planted.begin(args);
        Thread forge = new Thread(() -> {
            try {
                for (int piece = 0; piece < PIECES; piece++) {
                    Planted.burn(n == 1 ? 800 : 600);
                    if (n > 1) {
                        handFromTheForge(piece);
                    }
                }
                FORGE.put(LAST);
            } catch (InterruptedException error) {
                throw new AssertionError(error);
            }
        });
        forge.start();
        long waited = n > 1 ? Planted.runCrew(n - 1, Queue::polish) : 0;
        forge.join();
        Planted.tell("partner", waited);
    }
}
