! Loops as Fortran has them: each schedule, bounds of each kind, ordered and doacross loops, reductions of arrays and of own types,
! scans. Says "ok".
module vectors
  implicit none
  type vector
    integer :: x = 0
    integer, dimension(3) :: rest = 0
  end type
  interface operator(+)
    module procedure add
  end interface
  !$omp declare reduction(+:vector:omp_out = omp_out + omp_in)
contains
  pure function add(a, b) result(c)
    type(vector), intent(in) :: a, b
    type(vector) :: c
    c%x = a%x + b%x
    c%rest = a%rest + b%rest
  end function
end module

program loops
  use omp_lib
  use vectors
  implicit none
  integer, parameter :: n = 500

  call omp_set_dynamic(.false.)
  call omp_set_num_threads(4)
  call schedules()
  call bounds()
  call chunks()
  call ordered_loops()
  call doacross()
  call reductions()
  call scans()
  call last()
  call outside()
  print '(a)', 'ok'

contains

  subroutine schedules()
    integer :: i, chunk, seen(n)
    integer(omp_sched_kind) :: kind, kinds(4)
    seen = 0
    !$omp parallel private(i)
    !$omp do schedule(static)
    do i = 1, n
      seen(i) = seen(i) + 1
    end do
    !$omp end do
    !$omp do schedule(static, 7)
    do i = 1, n
      seen(i) = seen(i) + 1
    end do
    !$omp do schedule(monotonic:dynamic)
    do i = 1, n
      seen(i) = seen(i) + 1
    end do
    !$omp do schedule(nonmonotonic:dynamic, 4)
    do i = 1, n
      seen(i) = seen(i) + 1
    end do
    !$omp do schedule(guided)
    do i = 1, n
      seen(i) = seen(i) + 1
    end do
    !$omp do schedule(nonmonotonic:guided, 3)
    do i = n, 1, -1
      seen(i) = seen(i) + 1
    end do
    !$omp do schedule(auto)
    do i = 1, n
      seen(i) = seen(i) + 1
    end do
    !$omp do schedule(runtime)
    do i = 1, n
      seen(i) = seen(i) + 1
    end do
    !$omp do simd schedule(simd:dynamic, 5)
    do i = 1, n
      seen(i) = seen(i) + 1
    end do
    !$omp end parallel
    call check(all(seen == 9), 1)
    kinds = [omp_sched_static, omp_sched_dynamic, omp_sched_guided, omp_sched_auto]
    do i = 1, 4
      call omp_set_schedule(kinds(i), 3 + i)
      call omp_get_schedule(kind, chunk)
      call check(iand(kind, 255) == kinds(i), 2)
      if (i < 4) call check(chunk == 3 + i, 3)
      call runtime_loop()
    end do
    call omp_set_schedule(omp_sched_dynamic, 0)
    call runtime_loop()
  end subroutine

  subroutine runtime_loop()
    integer :: i, total
    integer(8) :: long, long_total
    total = 0
    long_total = 0
    !$omp parallel reduction(+:total, long_total)
    !$omp do schedule(runtime)
    do i = 1, n
      total = total + i
    end do
    !$omp end do nowait
    !$omp do schedule(runtime)
    do long = 5000000001_8, 5000000000_8 + n
      long_total = long_total + long - 5000000000_8
    end do
    !$omp end parallel
    call check(total == n * (n + 1) / 2 .and. long_total == total, 4)
  end subroutine

  subroutine bounds()
    integer :: i, j, first, last, step, count, expected
    integer(1) :: tiny, tiny_from
    integer(2) :: short
    integer(8) :: long
    ! Bounds that the compiler does not know, loops without turns among them.
    do first = -3, 3, 3
      do last = -10, 10, 10
        do step = -4, 4
          if (step == 0) cycle
          expected = max(0, (last - first + step) / step)
          count = 0
          !$omp parallel do reduction(+:count) schedule(dynamic) num_threads(3)
          do i = first, last, step
            count = count + 1
          end do
          call check(count == expected, 10)
          count = 0
          !$omp parallel do reduction(+:count) schedule(static, 2) num_threads(2)
          do i = first, last, step
            count = count + 1
          end do
          call check(count == expected, 11)
        end do
      end do
    end do
    count = 0
    tiny_from = -128
    !$omp parallel do reduction(+:count) schedule(guided)
    do tiny = tiny_from, 126_1
      count = count + 1
    end do
    call check(count == 255, 12)
    count = 0
    !$omp parallel do reduction(+:count) schedule(dynamic, 100)
    do short = 15000_2, -15000_2, -7_2
      count = count + 1
    end do
    call check(count == 4286, 13)
    count = 0
    !$omp parallel do reduction(+:count) schedule(dynamic)
    do long = huge(long) - 10, huge(long) - 1
      count = count + 1
    end do
    call check(count == 10, 14)
    count = 0
    !$omp parallel do reduction(+:count) schedule(guided)
    do i = -1000000000, 1000000000, 100000000
      count = count + 1
    end do
    call check(count == 21, 15)
    count = 0
    !$omp parallel do collapse(2) reduction(+:count) schedule(dynamic, 3)
    do i = 1, 20
      do j = 30, 1, -2
        count = count + merge(1, 1000, mod(j, 2) == 0)
      end do
    end do
    call check(count == 300, 16)
  end subroutine

  ! Which iterations one thread gets is said by the standard for this schedule.
  subroutine chunks()
    integer :: i, owner(60)
    owner = -1
    !$omp parallel do schedule(static, 5) num_threads(3)
    do i = 1, 60
      owner(i) = omp_get_thread_num()
    end do
    do i = 0, 59
      call check(owner(i + 1) == mod(i / 5, 3), 20)
    end do
    !$omp parallel do schedule(static) num_threads(4)
    do i = 1, 60
      owner(i) = omp_get_thread_num()
    end do
    do i = 0, 59
      call check(owner(i + 1) == i / 15, 21)
    end do
  end subroutine

  subroutine ordered_loops()
    integer :: i, next, wrong
    integer(8) :: long
    next = 1
    wrong = 0
    !$omp parallel
    !$omp do ordered schedule(static, 3)
    do i = 1, n
      !$omp ordered
      if (i /= next) wrong = wrong + 1
      next = i + 1
      !$omp end ordered
    end do
    !$omp do ordered schedule(guided, 2)
    do long = 6000000000_8, 6000000000_8 + n - 1
      ! Some have no ordered region.
      if (mod(long, 3_8) /= 0) then
        !$omp ordered
        if (mod(next - 1, n) >= n) wrong = wrong + 1
        next = next + 1
        !$omp end ordered
      end if
    end do
    !$omp do ordered schedule(runtime)
    do i = n, 1, -1
      !$omp ordered threads
      if (i == n) next = n
      if (i /= next) wrong = wrong + 1
      next = i - 1
      !$omp end ordered
    end do
    !$omp end parallel
    call check(wrong == 0 .and. next == 0, 30)
  end subroutine

  subroutine doacross()
    integer :: i, j, grid(0:30, 0:40), line(0:n)
    integer(8) :: long
    grid = 1
    !$omp parallel do ordered(2) schedule(dynamic)
    do i = 1, 30
      do j = 1, 40
        !$omp ordered depend(sink: i - 1, j) depend(sink: i, j - 1)
        grid(i, j) = mod(grid(i - 1, j) + grid(i, j - 1), 10007)
        !$omp ordered depend(source)
      end do
    end do
    do i = 1, 30
      do j = 1, 40
        call check(grid(i, j) == mod(grid(i - 1, j) + grid(i, j - 1), 10007), 40)
      end do
    end do
    line = 1
    !$omp parallel do ordered(1) schedule(static, 4)
    do i = 3, n, 2
      !$omp ordered depend(sink: i - 2)
      line(i) = line(i - 2) + 1
      !$omp ordered depend(source)
    end do
    call check(line(499) == 250, 41)
    line = 0
    !$omp parallel do ordered(1) schedule(runtime)
    do long = 7000000000_8, 7000000000_8 + n - 1
      !$omp ordered depend(sink: long - 1)
      line(long - 7000000000_8 + 1) = line(long - 7000000000_8) + 1
      !$omp ordered depend(source)
    end do
    call check(line(n) == n, 42)
  end subroutine

  subroutine reductions()
    integer :: i, total(10), low, high, bits, grown(2, 3)
    integer, allocatable :: of_heap(:)
    real(8) :: product
    complex :: z
    logical :: all_are, any_is, parity
    type(vector) :: v
    total = 100
    allocate (of_heap(0:4))
    of_heap = 1
    grown = 0
    low = huge(low)
    high = -huge(high)
    bits = 0
    product = 1
    z = 0
    all_are = .true.
    any_is = .false.
    parity = .false.
    v = vector(1, [1, 2, 3])
    !$omp parallel do reduction(+:total, of_heap, grown, z, v) reduction(min:low) reduction(max:high) reduction(ior:bits) &
    !$omp& reduction(*:product) reduction(.and.:all_are) reduction(.or.:any_is) reduction(.neqv.:parity) &
    !$omp& schedule(dynamic, 3)
    do i = 1, n
      total(mod(i, 10) + 1) = total(mod(i, 10) + 1) + 1
      of_heap(mod(i, 5)) = of_heap(mod(i, 5)) + i
      grown = grown + 1
      grown(2, 3) = grown(2, 3) + i
      low = min(low, abs(i - 250))
      high = max(high, abs(i - 250))
      bits = ior(bits, i)
      if (i <= 10) product = product * 2
      z = z + cmplx(1, -1)
      all_are = all_are .and. i > 0
      any_is = any_is .or. i == 77
      parity = parity .neqv. .true.
      v = v + vector(1, [i, 0, 1])
    end do
    call check(all(total == 150), 50)
    call check(sum(of_heap) == 5 + n * (n + 1) / 2 .and. of_heap(0) == 1 + 5 * 5050, 51)
    call check(grown(1, 1) == n .and. grown(2, 3) == n + n * (n + 1) / 2, 52)
    call check(low == 0 .and. high == 250 .and. bits == 511, 53)
    call check(product == 1024d0 .and. z == cmplx(n, -n), 54)
    call check(all_are .and. any_is .and. .not. parity, 55)
    call check(v%x == 501 .and. all(v%rest == [1 + n * (n + 1) / 2, 2, 503]), 56)
  end subroutine

  subroutine scans()
    integer :: i, sum_before, sum_with, here(n), before(n), with(n)
    here = [(mod(i * 7, 11), i = 1, n)]
    sum_with = 0
    !$omp parallel do reduction(inscan, +:sum_with)
    do i = 1, n
      sum_with = sum_with + here(i)
      !$omp scan inclusive(sum_with)
      with(i) = sum_with
    end do
    sum_before = 0
    !$omp parallel do reduction(inscan, +:sum_before) num_threads(3)
    do i = 1, n
      before(i) = sum_before
      !$omp scan exclusive(sum_before)
      sum_before = sum_before + here(i)
    end do
    do i = 1, n
      call check(with(i) == sum(here(:i)) .and. before(i) == sum(here(:i - 1)), 60)
    end do
    call check(sum_with == sum(here), 61)
  end subroutine

  subroutine last()
    integer :: i, found, step, ends
    found = 0
    step = 0
    !$omp parallel do lastprivate(ends) linear(step:2) schedule(dynamic, 7)
    do i = 1, n
      ends = i
      step = step + 2
    end do
    call check(ends == n .and. step == 2 * n, 70)
    !$omp parallel do lastprivate(conditional:found) schedule(dynamic, 2)
    do i = 1, n
      if (mod(i, 123) == 0) found = i
    end do
    call check(found == 492, 71)
  end subroutine

  ! Bound to no region: by the one thread.
  subroutine outside()
    integer :: i, total
    total = 0
    !$omp do schedule(dynamic, 3)
    do i = 1, n
      total = total + 1
    end do
    !$omp do ordered schedule(guided)
    do i = 1, n
      !$omp ordered
      total = total + 1
      !$omp end ordered
    end do
    !$omp sections
    !$omp section
    total = total + 1
    !$omp section
    total = total + 1
    !$omp end sections
    !$omp single
    total = total + 1
    !$omp end single
    !$omp workshare
    total = total + 1
    !$omp end workshare
    call check(total == 2 * n + 4, 80)
  end subroutine

  include 'check.inc'
end program
