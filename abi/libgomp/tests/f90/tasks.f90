! Tasks as Fortran has them: dependences, groups and their reductions, loops of tasks, events, cancellation. Says "ok".
program tasks
  use omp_lib
  implicit none
  integer :: round

  call omp_set_dynamic(.false.)
  call omp_set_num_threads(4)
  call check(omp_get_cancellation() .and. omp_get_max_task_priority() == 5, 1)
  do round = 1, 3
    call dependences()
    call groups()
    call task_loops()
    call kinds()
    call events()
    call cancelled()
  end do
  print '(a)', 'ok'

contains

  subroutine dependences()
    integer :: i, chain, sums(0:8), total, log(6), at
    chain = 0
    sums = 0
    !$omp parallel
    !$omp single
    do i = 1, 100
      !$omp task depend(inout: chain) firstprivate(i)
      if (chain == i - 1) chain = i
      !$omp end task
    end do
    ! Two by two, as in a tree.
    do i = 1, 4
      !$omp task depend(out: sums(i)) firstprivate(i)
      sums(i) = i * 10
      !$omp end task
    end do
    do i = 1, 2
      !$omp task depend(in: sums(2 * i - 1), sums(2 * i)) depend(out: sums(4 + i)) firstprivate(i)
      sums(4 + i) = sums(2 * i - 1) + sums(2 * i)
      !$omp end task
    end do
    !$omp task depend(in: sums(5), sums(6)) depend(out: sums(7))
    sums(7) = sums(5) + sums(6)
    !$omp end task
    !$omp taskwait depend(in: sums(7))
    call check(sums(7) == 100, 10)
    !$omp taskwait
    call check(chain == 100, 11)

    total = 0
    do i = 1, 50
      !$omp task depend(mutexinoutset: total) firstprivate(i)
      total = total + i
      !$omp end task
    end do
    !$omp task depend(in: total)
    call check(total == 1275, 12)
    !$omp end task
    !$omp taskwait

    at = 0
    !$omp task depend(out: log)
    at = at + 1
    log(at) = 1
    !$omp end task
    !$omp task depend(inout: log)
    at = at + 1
    log(at) = 2
    !$omp end task
    !$omp task if(.false.) depend(in: log)
    at = at + 1
    log(at) = 3
    !$omp end task
    call check(all(log(:3) == [1, 2, 3]), 13)
    !$omp end single
    !$omp end parallel
  end subroutine

  recursive subroutine grow(depth, count)
    integer, intent(in) :: depth
    integer, intent(inout) :: count
    !$omp atomic
    count = count + 1
    if (depth == 0) return
    !$omp task shared(count)
    call grow(depth - 1, count)
    !$omp end task
    !$omp task shared(count)
    call grow(depth - 1, count)
    !$omp end task
  end subroutine

  subroutine groups()
    integer :: i, count, total, per(3)
    count = 0
    total = 0
    per = 0
    !$omp parallel
    !$omp single
    !$omp taskgroup
    call grow(7, count)
    !$omp end taskgroup
    call check(count == 255, 20)
    !$omp taskgroup task_reduction(+: total, per)
    do i = 1, 100
      !$omp task in_reduction(+: total, per) firstprivate(i)
      total = total + i
      per(mod(i, 3) + 1) = per(mod(i, 3) + 1) + 1
      !$omp end task
    end do
    !$omp end taskgroup
    call check(total == 5050 .and. all(per == [33, 34, 33]), 21)
    !$omp end single
    !$omp end parallel
    ! Of a region, whose threads all make some.
    total = 0
    !$omp parallel reduction(task, +: total) private(i)
    do i = 1, 10
      !$omp task in_reduction(+: total)
      total = total + 1
      !$omp end task
    end do
    !$omp end parallel
    call check(total == 40, 22)
  end subroutine

  subroutine task_loops()
    integer :: i, total, most, ends, seen(300)
    integer(8) :: long
    seen = 0
    total = 0
    most = 0
    !$omp parallel
    !$omp single
    !$omp taskloop grainsize(7)
    do i = 1, 300
      seen(i) = seen(i) + 1
    end do
    !$omp taskloop num_tasks(11) reduction(+: total) reduction(max: most)
    do i = 300, 1, -3
      total = total + 1
      most = max(most, i)
    end do
    call check(total == 100 .and. most == 300, 30)
    !$omp taskgroup task_reduction(+: total)
    !$omp taskloop in_reduction(+: total) nogroup
    do long = 8000000000_8, 8000000099_8
      total = total + 1
    end do
    !$omp end taskgroup
    call check(total == 200, 31)
    !$omp taskloop simd num_tasks(strict: 5)
    do i = 1, 300
      seen(i) = seen(i) + 1
    end do
    !$omp taskloop collapse(2) lastprivate(ends) if(.false.)
    do i = 1, 3
      do ends = 1, 4
      end do
    end do
    !$omp end single
    !$omp end parallel
    call check(all(seen == 2) .and. ends == 5, 32)
    total = 0
    !$omp parallel master taskloop reduction(+: total)
    do i = 1, 77
      total = total + i
    end do
    call check(total == 3003, 33)
  end subroutine

  subroutine kinds()
    integer :: finals, order, i, text_right
    character(len=23) :: text
    finals = 0
    order = 0
    text_right = 0
    text = 'as long as it has to be'
    !$omp parallel
    !$omp single
    !$omp task final(.true.) mergeable
    if (omp_in_final()) finals = finals + 1
    !$omp task
    if (omp_in_final()) finals = finals + 1
    !$omp end task
    !$omp end task
    !$omp taskwait
    call check(finals == 2, 40)
    do i = 1, 20
      !$omp task priority(mod(i, 6)) untied shared(order)
      !$omp taskyield
      !$omp atomic
      order = order + 1
      !$omp end task
    end do
    do i = 1, 20
      !$omp task firstprivate(text) shared(text_right)
      if (text == 'as long as it has to be') then
        !$omp atomic
        text_right = text_right + 1
      end if
      text = 'x'
      !$omp end task
    end do
    !$omp taskwait
    call check(order == 20 .and. text_right == 20, 41)
    !$omp end single
    !$omp end parallel
  end subroutine

  subroutine events()
    integer(omp_event_handle_kind) :: event
    integer :: steps
    steps = 0
    !$omp parallel
    !$omp single
    !$omp task detach(event) depend(out: steps) shared(steps)
    !$omp atomic
    steps = steps + 1
    !$omp end task
    !$omp task depend(in: steps) shared(steps)
    if (steps == 2) steps = 3
    !$omp end task
    !$omp task shared(steps) firstprivate(event)
    !$omp atomic
    steps = steps + 1
    call omp_fulfill_event(event)
    !$omp end task
    !$omp end single
    !$omp end parallel
    call check(steps == 3, 50)
  end subroutine

  subroutine cancelled()
    integer :: i, ran, found, after
    ran = 0
    found = 0
    after = 0
    !$omp parallel
    !$omp single
    !$omp taskgroup
    do i = 1, 100
      !$omp task shared(ran)
      !$omp atomic
      ran = ran + 1
      !$omp cancel taskgroup
      !$omp atomic
      ran = ran + 1000
      !$omp end task
    end do
    !$omp end taskgroup
    !$omp end single
    !$omp end parallel
    call check(ran >= 1 .and. ran <= 100, 60)
    !$omp parallel
    !$omp do schedule(dynamic)
    do i = 1, 10000
      if (i == 50) then
        !$omp atomic write
        found = i
        !$omp cancel do
      end if
      !$omp cancellation point do
    end do
    !$omp end do
    !$omp sections
    !$omp section
    !$omp cancel sections
    after = after + 1000
    !$omp section
    !$omp cancellation point sections
    !$omp end sections
    !$omp atomic
    after = after + 1
    !$omp end parallel
    call check(found == 50 .and. after == 4, 61)
    !$omp parallel
    if (omp_get_thread_num() == 3) then
      !$omp cancel parallel
    end if
    !$omp barrier
    !$omp atomic
    after = after + 1000
    !$omp end parallel
    call check(after == 4, 62)
  end subroutine

  include 'check.inc'
end program
